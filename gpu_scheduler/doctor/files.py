"""Our files and folders: whether they can be used, and whether somebody else could change them."""

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

#: Free space below this is told, in bytes.
_LITTLE = 256 * 1024 * 1024
#: Seconds after which a backup should have been followed by another one.
_OLD_S = 2 * 86_400
_RESTORE = "end its scheduler, then `start --restore` goes on from the newest backup"
#: Seconds that a check of the record may take.
_CHECK_S = 20.0


def folders(home: Home, logs: LogFolder, *, trust: bool = False) -> Iterator[Finding]:
    """What is wrong with the places that we write to, as the scheduler sees it; else how much room it is.

    trust, here and below: files are used whoever owns them or may write them.
    """
    found = troubles(home, logs, trust=trust)
    yield from map(of_trouble, found)
    told = {trouble.what for trouble in found if trouble.stops}
    for what, path in (("log folder", logs.usable()), ("record", home.folder)):
        if what not in told and path is not None:
            yield _room(what, path)


def _room(what: str, path: Path) -> Finding:
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    says = f"{path}{'' if there == path else ' (not made yet)'}, {free / 1024**3:.1f} GiB free"
    if there == path and (open_to := _open_to_others(path)) is not None:
        return warn(what, f"{says}; {open_to}", f"chmod go-w {path}")
    return warn(what, says, "free space there") if free < _LITTLE else ok(what, says)


def record(home: Home) -> Iterator[Finding]:
    """The database, and the kind of disk that it lies on."""
    kind = kind_of(home.folder)
    if is_shared(kind):
        says = f"{home.folder} is on {kind}: its locks and files are not those of one host"
        yield bad("file system", says, "name a folder on a local disk with --data-dir")
    else:
        yield ok("file system", f"{kind or 'unknown'}, under {home.folder}")
    try:
        home.check_access()
        if home.folder.is_dir():
            check_inside(home.folder)
    except SchedulerError as error:
        says, _, remedy = str(error).partition("\n")
        yield bad("database", says, remedy or "name a state file of yours with --state-file")
        return
    owner = home.foreign()
    if owner is not None:  # even a reader's locks would not be seen there
        says = f"{home.database} is that of host {owner.name}, and is not looked into from here"
        yield warn("database", says, f"`doctor` on {owner.name}")
        return
    if is_empty(home.database):
        yield _no_database(home)
        return
    try:
        yield _checked(home.database)
    except sqlite3.OperationalError as error:
        remedy = "look at its permissions and at those of its folder"
        yield warn("database", f"{home.database} cannot be read: {error}", remedy)
    except sqlite3.DatabaseError as error:
        yield bad("database", f"{home.database} is damaged: {error}", _RESTORE)
    yield from _kept(home)


def _no_database(home: Home) -> Finding:
    if not is_lost(home):
        return ok("database", "there is none yet; the first `start` makes it")
    return bad("database", f"{home.database} is missing or empty, and what it knew is lost", _RESTORE)


def _kept(home: Home) -> Iterator[Finding]:
    """The backups, and attempts that only their folders tell of."""
    there = backups(home)
    if there:
        age_s = time.time() - there[0].made_at
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(there[0].made_at))
        says = f"{len(there)} in {home.backups}, the newest of {when}"
        if age_s > _OLD_S and scheduler_pid(home.lock) is not None:
            yield warn("backups", f"{says}, though a scheduler runs", f"{home.log} says why none is made")
        else:
            yield ok("backups", says)
    else:
        yield ok("backups", "none yet: a scheduler makes one soon after its start, then one a day")
    try:
        folders = in_runs(home)  # before the record, which knows an attempt before its folder is made
        with closing(sqlite3.connect(f"{home.database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            strange = unknown(folders, db)
    except (OSError, sqlite3.Error):
        return  # which is told above
    if strange:
        jobs = ranges(sorted({one.job_id for one in strange}))
        says = f"{len(strange)} in {home.runs} not on the record, of job {jobs}: that is older than they are"
        yield bad("attempts", says, _RESTORE)


def _checked(path: Path) -> Finding:
    end = time.monotonic() + _CHECK_S
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
    try:
        db.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        schema = db.execute("PRAGMA user_version").fetchone()[0]
        try:
            said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "interrupt" not in str(error):
                raise
            said = "ok"  # too large to be read through in time; what was read is whole
    finally:
        db.close()
    if said != "ok":
        return bad("database", f"{path} is damaged: {said}", _RESTORE)
    size = path.stat().st_size / 1024**2
    return ok("database", f"{path}, schema {schema}, {size:.1f} MiB, whole")


def gpu_kind(home: Home, simulated: bool) -> Iterator[Finding]:
    """Whether the record has jobs of the other kind of GPUs, for which `start` is refused."""
    found = recorded(home.database) if home.foreign() is None else None
    if found is not None and found.is_other_than(simulated):
        yield warn("kind of GPUs", *found.refusal(home.folder))


def state_file(home: Home, *, trust: bool = False) -> Finding:
    """The JSON file, which people and scripts edit."""
    path = home.state_file
    found = safefile.read(path, trust=trust)
    if isinstance(found, FileProblem):
        if found.kind is Kind.MISSING:
            return ok("state file", f"{path} (not there yet)")
        forbidden = found.kind is Kind.UNREADABLE and found.errno in (errno.EACCES, errno.EPERM)
        remedy = f"chmod u+rw {path}" if forbidden else found.remedy or "remove it, or move it aside"
        return bad("state file", f"{path} {found.says}", remedy)
    try:
        statefile.parse(found.data)
    except ValueError as error:
        remedy = "mend it; else it is set aside as .bad and written anew"
        return warn("state file", f"{path}: {error}", remedy)
    return _guarded("state file", path, "JSON", trust=trust)


def jobs_file(path: str, *, trust: bool = False) -> Finding:
    """Whoever can write it runs commands as us."""
    if not path:
        return ok("jobs file", "none is watched")
    file = Path(os.path.abspath(path))
    look = JobsFile(file, trust=trust).look()
    if look.state == "missing":
        return ok("jobs file", f"{file} (not there; it is waited for)")
    if look.state == "unreadable":
        remedy = look.remedy or "name a text file of jobs that you may read"
        return bad("jobs file", f"{file} {look.problem}", remedy)
    return _guarded("jobs file", file, f"`lint {path}` says what its lines do", trust=trust)


def llm_config(named: str | None, *, trust: bool = False) -> Finding:
    """The needs of models."""
    try:
        file = LlmConfigFile(named, trust=trust)
    except UsageError as error:
        return bad("llm_config", str(error), "mend it, or name another one with --llm-config")
    if not file.path.exists():
        return ok("llm_config", f"{file.path} (not there: a job that names no share needs 1 GPU)")
    return _guarded("llm_config", file.path, "JSON, as it should be", trust=trust)


def scheduler(home: Home) -> Finding:
    """Whether one is up, and whether one can be here."""
    owner = home.foreign()
    if owner is not None:
        here = this_host().name
        says = f"the record of {home.state_file} belongs to host {owner.name}, this is host {here}"
        remedy = f"do it on {owner.name}; if that is gone, or was this host's name: `start --take-over`"
        return bad("scheduler", f"{says}: nothing can be started here", remedy)
    pid = scheduler_pid(home.lock)
    return ok("scheduler", "not running" if pid is None else f"running, {pid_words(pid)}")


def _guarded(check: str, path: Path, says: str, *, trust: bool) -> Finding:
    """A file that is used: fine, unless somebody else could change it, or exchange it in its folder."""
    allowed = safefile.owners(path)
    for place in (path, path.parent):
        status = place.stat()
        if status.st_uid not in allowed:
            says = f"{place} belongs to uid {status.st_uid}, who can change what is run"
            judge = warn if trust else bad
            return judge(check, says, f"sudo chown {os.geteuid()} {place}, or use a folder of yours")
        who = _open_to_others(place)
        if who is not None:
            judge = bad if status.st_mode & stat.S_IWOTH and not trust else warn
            return judge(check, f"{place} {who}: they can change what is run", f"chmod go-w {place}")
    return ok(check, f"{path}; {says}")


def _open_to_others(path: Path) -> str | None:
    """Who else may write there, as a predicate. In a sticky folder files stay their owners'."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    return "may be written by its group" if status.st_mode & stat.S_IWGRP else None
