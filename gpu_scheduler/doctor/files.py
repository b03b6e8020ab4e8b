"""Checks whether our files and folders can be used, and whether other users could change them."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpu_scheduler import safefile
from gpu_scheduler.doctor.findings import Finding, bad, of_trouble, ok, warn
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.filelook import JobsFile
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.llmconfig import LlmConfigFile
from gpu_scheduler.safefile import FileProblem, Kind
from gpu_scheduler.storage import troubles
from gpu_scheduler.store import statefile
from gpu_scheduler.store.attemptfolders import in_runs, unknown
from gpu_scheduler.store.backups import backups
from gpu_scheduler.store.condition import is_empty, is_lost
from gpu_scheduler.store.filesystem import is_shared, kind_of
from gpu_scheduler.store.gpukind import recorded
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.host import this_host
from gpu_scheduler.store.instance import scheduler_pid
from gpu_scheduler.store.private import check_inside
from gpu_scheduler.views.titles import ranges
from gpu_scheduler.views.words import pid_words

#: Free space in bytes below which `doctor` warns.
_LITTLE = 256 * 1024 * 1024
#: Age in seconds of the newest backup above which `doctor` warns.
_OLD_S = 2 * 86_400
_RESTORE = "stop its scheduler, then run `start --restore` to continue from the newest backup"
#: Seconds that the integrity check of the database may take.
_CHECK_S = 20.0


def folders(home: Home, logs: LogFolder, *, trust: bool = False) -> Iterator[Finding]:
    """Yields the health issues that the scheduler sees, and the free space of the log folder and the store.

    trust, here and below: files are used whoever owns them or may write them.
    """
    found = troubles(home, logs, trust=trust)
    yield from map(of_trouble, found)
    reported = {issue.what for issue in found if issue.stops}
    for what, path in (("log folder", logs.usable()), ("store", home.folder)):
        if what not in reported and path is not None:
            yield _room(what, path)


def _room(what: str, path: Path) -> Finding:
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    says = f"{path}{'' if there == path else ' (not created yet)'}, {free / 1024**3:.1f} GiB free"
    if there == path and (open_to := _open_to_others(path)) is not None:
        return warn(what, f"{says}; {open_to}", f"chmod go-w {path}")
    return warn(what, says, "free space there") if free < _LITTLE else ok(what, says)


def record(home: Home) -> Iterator[Finding]:
    """Yields the findings about the store: its file system, its database, its backups and attempt folders."""
    kind = kind_of(home.folder)
    if is_shared(kind):
        says = f"{home.folder} is on {kind}, whose locks and files several hosts share"
        yield bad("file system", says, "name a folder on a local disk with --data-dir")
    else:
        yield ok("file system", f"{kind or 'unknown'}, under {home.folder}")
    try:
        home.check_access()
        if home.folder.is_dir():
            check_inside(home.folder)
    except SchedulerError as error:
        says, _, remedy = str(error).partition("\n")
        yield bad("database", says, remedy or "name a state file that you own with --state-file")
        return
    owner = home.foreign()
    if owner is not None:  # the other host would not see even a reader's locks
        says = f"{home.database} belongs to host {owner.name}, and is not read from here"
        yield warn("database", says, f"run `doctor` on {owner.name}")
        return
    if is_empty(home.database):
        yield _no_database(home)
        return
    try:
        yield _checked(home.database)
    except sqlite3.OperationalError as error:
        remedy = "check its permissions and those of its folder"
        yield warn("database", f"{home.database} cannot be read: {error}", remedy)
    except sqlite3.DatabaseError as error:
        yield bad("database", f"{home.database} is damaged: {error}", _RESTORE)
    yield from _kept(home)


def _no_database(home: Home) -> Finding:
    if not is_lost(home):
        return ok("database", "none yet; the first `start` creates it")
    return bad("database", f"{home.database} is missing or empty, and its content is lost", _RESTORE)


def _kept(home: Home) -> Iterator[Finding]:
    """Yields the findings about the backups, and about attempt folders that the store does not know."""
    there = backups(home)
    if there:
        age_s = time.time() - there[0].made_at
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(there[0].made_at))
        says = f"{len(there)} in {home.backups}, the newest from {when}"
        if age_s > _OLD_S and scheduler_pid(home.lock) is not None:
            yield warn("backups", f"{says}, though a scheduler runs", f"see {home.log} for the reason")
        else:
            yield ok("backups", says)
    else:
        yield ok("backups", "none yet: a scheduler makes one soon after its start, then one a day")
    try:
        folders = in_runs(home)  # before the store, which knows an attempt before its folder is created
        with closing(sqlite3.connect(f"{home.database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            unknown_folders = unknown(folders, db)
    except (OSError, sqlite3.Error):
        return  # reported above
    if unknown_folders:
        jobs = ranges(sorted({one.job_id for one in unknown_folders}))
        says = f"{len(unknown_folders)} in {home.runs} of job {jobs} are not in the store, which is older"
        yield bad("attempts", says, _RESTORE)


def _checked(path: Path) -> Finding:
    end = time.monotonic() + _CHECK_S
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
    try:
        db.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        schema = db.execute("PRAGMA user_version").fetchone()[0]
        try:
            result = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "interrupt" not in str(error):
                raise
            result = "ok"  # too large to be read in time; the part that was read is intact
    finally:
        db.close()
    if result != "ok":
        return bad("database", f"{path} is damaged: {result}", _RESTORE)
    size = path.stat().st_size / 1024**2
    return ok("database", f"{path}, schema {schema}, {size:.1f} MiB, intact")


def gpu_kind(home: Home, simulated: bool) -> Iterator[Finding]:
    """Yields a finding if the store holds jobs of the other kind of GPUs, for which `start` is refused."""
    found = recorded(home.database) if home.foreign() is None else None
    if found is not None and found.is_other_than(simulated):
        yield warn("kind of GPUs", *found.refusal(home.folder))


def state_file(home: Home, *, trust: bool = False) -> Finding:
    """Returns the finding about the state file, which people and scripts edit."""
    path = home.state_file
    found = safefile.read(path, trust=trust)
    if isinstance(found, FileProblem):
        if found.kind is Kind.MISSING:
            return ok("state file", f"{path} (does not exist yet)")
        forbidden = found.kind is Kind.UNREADABLE and found.errno in (errno.EACCES, errno.EPERM)
        remedy = f"chmod u+rw {path}" if forbidden else found.remedy or "remove it, or move it aside"
        return bad("state file", f"{path} {found.says}", remedy)
    try:
        statefile.parse(found.data)
    except ValueError as error:
        remedy = "correct it; otherwise it is renamed to .bad and written anew"
        return warn("state file", f"{path}: {error}", remedy)
    return _guarded("state file", path, "JSON", trust=trust)


def jobs_file(path: str, *, trust: bool = False) -> Finding:
    """Returns the finding about the jobs file; whoever can write it runs commands as us."""
    if not path:
        return ok("jobs file", "none")
    file = Path(os.path.abspath(path))
    look = JobsFile(file, trust=trust).look()
    if look.state == "missing":
        return ok("jobs file", f"{file} (does not exist; `start` waits for it)")
    if look.state == "unreadable":
        remedy = look.remedy or "name a text file of jobs that you can read"
        return bad("jobs file", f"{file} {look.problem}", remedy)
    return _guarded("jobs file", file, f"`lint {path}` explains its lines", trust=trust)


def llm_config(named: str | None, *, trust: bool = False) -> Finding:
    """Returns the finding about llm_config.json, which holds the needs of models."""
    try:
        file = LlmConfigFile(named, trust=trust)
    except UsageError as error:
        return bad("llm_config", str(error), "correct it, or name another one with --llm-config")
    if not file.path.exists():
        return ok("llm_config", f"{file.path} (does not exist: a job that names no share needs 1 GPU)")
    return _guarded("llm_config", file.path, "valid JSON", trust=trust)


def scheduler(home: Home) -> Finding:
    """Returns whether a scheduler runs, and whether one can run on this host."""
    owner = home.foreign()
    if owner is not None:
        here = this_host().name
        says = f"the store of {home.state_file} belongs to host {owner.name}, this is host {here}"
        remedy = f"start it on {owner.name}; if that host is gone or was renamed to this: `start --take-over`"
        return bad("scheduler", f"{says}: no scheduler can start here", remedy)
    pid = scheduler_pid(home.lock)
    return ok("scheduler", "not running" if pid is None else f"running, {pid_words(pid)}")


def _guarded(check: str, path: Path, says: str, *, trust: bool) -> Finding:
    """Returns the finding about a usable file: ok unless other users could change or replace it."""
    allowed = safefile.owners(path)
    for place in (path, path.parent):
        status = place.stat()
        if status.st_uid not in allowed:
            says = f"{place} belongs to uid {status.st_uid}, who can change what runs here"
            judge = warn if trust else bad
            return judge(check, says, f"sudo chown {os.geteuid()} {place}, or use a folder that you own")
        who = _open_to_others(place)
        if who is not None:
            judge = bad if status.st_mode & stat.S_IWOTH and not trust else warn
            return judge(check, f"{place} {who}, who can change what runs here", f"chmod go-w {place}")
    return ok(check, f"{path}; {says}")


def _open_to_others(path: Path) -> str | None:
    """Returns who else may write to a path, as a predicate; None for nobody, or for a sticky folder."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "is writable by everyone"
    return "is writable by its group" if status.st_mode & stat.S_IWGRP else None
