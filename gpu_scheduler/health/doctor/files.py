"""Checks whether the scheduler's files and folders can be used, and whether other users could change them."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.core.model.finding import Check, Finding, bad, from_health_issue, ok, warn
from gpu_scheduler.core.model.gpu import SIMULATED_UUID_PREFIX, GpuClaim, format_ranges
from gpu_scheduler.core.text.formatting import count_noun, pid_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.storage import find_issues
from gpu_scheduler.intake.jobs_file_text import JobsFile
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.store import state_file as statefile
from gpu_scheduler.store.backups import is_store_lost, list_backups
from gpu_scheduler.store.data_dir import DataDir, check_entries
from gpu_scheduler.store.database import check_integrity, is_missing_or_empty, read_meta
from gpu_scheduler.store.inspection import unknown_attempt_folders
from gpu_scheduler.store.moved_or_copied import FOLDER_KEY, copied_from, copy_refusal
from gpu_scheduler.store.new_store import recorded_gpus
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.filesystem import is_shared, kind_of
from gpu_scheduler.system.gpu_claims import (
    LOCK_FOLDER_KEY,
    check_writable,
    claims_of,
    lock_problem,
    read_gpu_locks,
)
from gpu_scheduler.system.lock_folder import (
    SYSTEM_FOLDER,
    VARIABLE,
    ClaimFolder,
    find_lock_folder,
    folder_problem,
)
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind

#: `doctor` warns if fewer bytes than this are free on a disk.
_LOW_SPACE_BYTES = 256 * 1024 * 1024
#: `doctor` warns if the newest backup is older than this many seconds.
_MAX_BACKUP_AGE_S = 2 * 86_400
_RESTORE_REMEDY = "stop the scheduler, then run `start --restore` to continue from the newest backup"
#: Maximum number of seconds for the integrity check of the database.
_CHECK_TIMEOUT_S = 20.0


def folders(data_dir: DataDir, log_folder: LogFolder, *, trust: bool = False) -> Iterator[Finding]:
    """Yields the health issues that would affect the scheduler, and the free space for logs and the store.

    trust, here and below: use files regardless of their owner and mode.
    """
    found = find_issues(data_dir, log_folder, trust=trust)
    yield from map(from_health_issue, found)
    reported = {issue.subject for issue in found if issue.blocks_starts}
    written: tuple[tuple[Check, Path | None], ...] = (
        ("log folder", log_folder.usable_path()), ("store", data_dir.folder),
    )  # fmt: skip
    for subject, path in written:
        if subject not in reported and path is not None:
            yield _free_space(subject, path)


def _free_space(check: Check, path: Path) -> Finding:
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    message = f"{path}{'' if there == path else ' (not created yet)'}, {free / 1024**3:.1f} GiB free"
    if there == path and (open_to := _other_writers(path)) is not None:
        return warn(check, f"{message}; {open_to}", f"chmod go-w {path}")
    return warn(check, message, "free some space there") if free < _LOW_SPACE_BYTES else ok(check, message)


def store_findings(data_dir: DataDir) -> Iterator[Finding]:
    """Yields the findings about the store: its file system, database, backups and attempt folders."""
    kind = kind_of(data_dir.folder)
    if is_shared(kind):
        message = f"{data_dir.folder} is on {kind}, which several hosts may share"
        yield bad("file system", message, "use --data-dir to choose a folder on a local disk")
    else:
        yield ok("file system", f"{data_dir.folder} is on {kind or 'an unknown file system'}")
    try:
        data_dir.check_access()
        if data_dir.folder.is_dir():
            check_entries(data_dir.folder)
    except SchedulerError as error:
        message, _, remedy = str(error).partition("\n")
        yield bad("database", message, remedy or "use --state-file to choose a state file that you own")
        return
    owner = data_dir.other_host()
    if owner is not None:  # the other host would not notice the locks of a reader on this host
        message = f"{data_dir.database} belongs to host {owner.name} and was not checked"
        yield warn("database", message, f"run `doctor` on {owner.name}")
        return
    if is_missing_or_empty(data_dir.database):
        yield _missing_database(data_dir)
        return
    try:
        yield _integrity(data_dir.database)
    except sqlite3.OperationalError as error:
        remedy = "check the permissions of the file and of its folder"
        yield warn("database", f"{data_dir.database} cannot be read: {error}", remedy)
    except sqlite3.DatabaseError as error:
        yield bad("database", f"{data_dir.database} is damaged: {error}", _RESTORE_REMEDY)
    yield from _backups_and_attempts(data_dir)


def _missing_database(data_dir: DataDir) -> Finding:
    if not is_store_lost(data_dir):
        return ok("database", "there is none yet; the first `start` creates it")
    return bad("database", f"{data_dir.database} is missing or empty: its content is lost", _RESTORE_REMEDY)


def _backups_and_attempts(data_dir: DataDir) -> Iterator[Finding]:
    """Yields the findings about the backups, and about attempt folders that are missing from the store."""
    there = list_backups(data_dir)
    if there:
        age_s = time.time() - there[0].made_at
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(there[0].made_at))
        message = f"{count_noun(len(there), 'backup')} in {data_dir.backups}; the newest is from {when}"
        if age_s > _MAX_BACKUP_AGE_S and scheduler_pid(data_dir.lock) is not None:
            yield warn(
                "backups",
                f"{message}, although a scheduler is running",
                f"look for the reason in {data_dir.main_log}",
            )
        else:
            yield ok("backups", message)
    else:
        yield ok("backups", "none yet; a scheduler makes one soon after it starts, then one per day")
    try:
        unknown_folders = unknown_attempt_folders(data_dir)
    except (OSError, sqlite3.Error):
        return  # `store_findings` has reported this error
    if unknown_folders:
        ids = sorted({one.job_id for one in unknown_folders})
        jobs = f"{'job' if len(ids) == 1 else 'jobs'} {format_ranges(ids)}"
        verb = "is" if len(unknown_folders) == 1 else "are"
        message = (
            f"{count_noun(len(unknown_folders), 'attempt folder')} in {data_dir.runs} ({jobs})"
            f" {verb} missing from the store, which seems to be out of date"
        )
        yield bad("attempts", message, _RESTORE_REMEDY)


def _integrity(path: Path) -> Finding:
    schema, damage = check_integrity(path, _CHECK_TIMEOUT_S)
    if damage is not None:
        return bad("database", f"{path} is damaged: {damage}", _RESTORE_REMEDY)
    size = path.stat().st_size / 1024**2
    return ok("database", f"{path}, schema {schema}, {size:.1f} MiB, intact")


def gpu_kind(data_dir: DataDir, simulated: bool) -> Iterator[Finding]:
    """Yields a finding if `start` would refuse to run because the store has jobs from the other kind of GPU.

    simulated: whether `start` would simulate the GPUs.
    """
    found = recorded_gpus(data_dir.database) if data_dir.other_host() is None else None
    if found is not None and found.conflicts_with(simulated):
        yield warn("kind of GPUs", *found.refusal(data_dir.folder))


def state_file(data_dir: DataDir, *, trust: bool = False) -> Finding:
    """Returns the finding about the state file, which people and scripts edit."""
    path = data_dir.state_file
    found = safe_file.read(path, trust=trust)
    if isinstance(found, FileProblem):
        if found.kind is ProblemKind.MISSING:
            return ok("state file", f"{path} (does not exist yet)")
        forbidden = found.kind is ProblemKind.UNREADABLE and found.errno in (errno.EACCES, errno.EPERM)
        remedy = f"chmod u+rw {path}" if forbidden else found.remedy or "remove it, or move it aside"
        return bad("state file", f"{path} {found.description}", remedy)
    try:
        statefile.parse(found.data)
    except ValueError as error:
        remedy = "correct it; otherwise the scheduler renames it to .bad and writes a new one"
        return warn("state file", f"{path}: {error}", remedy)
    return _check_permissions("state file", path, "valid JSON", trust=trust)


def jobs_file(path: str, *, trust: bool = False) -> Finding:
    """Returns the finding about the jobs file. Anyone who can write to it can run commands as this user."""
    if not path:
        return ok("jobs file", "the scheduler uses none")
    file = Path(os.path.abspath(path))
    found = JobsFile(file, trust=trust).read()
    if isinstance(found, FileProblem):
        if found.kind is ProblemKind.MISSING:
            return ok("jobs file", f"{file} (does not exist; `start` waits for it)")
        remedy = found.remedy or "give a readable text file with one job per line"
        return bad("jobs file", f"{file} {found.description}", remedy)
    return _check_permissions(
        "jobs file", file, f"`lint {shlex.quote(path)}` explains its lines", trust=trust
    )


def llm_config(path: str | None, *, trust: bool = False) -> Finding:
    """Returns the finding about llm_config.json, which lists what each model needs."""
    try:
        file = LlmConfigFile(path, trust=trust)
    except UsageError as error:
        return bad("llm_config", str(error), "correct it, or choose another file with --llm-config")
    if not file.path.exists():
        return ok("llm_config", f"{file.path} (does not exist; a job that declares no need gets 1 GPU)")
    return _check_permissions("llm_config", file.path, "valid JSON", trust=trust)


def scheduler(data_dir: DataDir) -> Finding:
    """Returns the finding about the scheduler: whether it is running, or why none can run here."""
    owner = data_dir.other_host()
    if owner is not None:
        message, _, remedy = data_dir.refusal(owner).partition("\n")
        return bad("scheduler", message, remedy)
    original = copied_from(data_dir, read_meta(data_dir.database, FOLDER_KEY))
    if original is not None:
        message, _, remedy = copy_refusal(data_dir, original).partition("\n")
        return bad("scheduler", message, remedy)
    pid = scheduler_pid(data_dir.lock)
    return ok("scheduler", "not running" if pid is None else f"running, {pid_text(pid)}")


def _check_permissions(check: Check, path: Path, message: str, *, trust: bool) -> Finding:
    """Returns the finding about a usable file: ok unless other users could change or replace the file."""
    allowed = safe_file.trusted_owners(path)
    for place in (path, path.parent):
        status = place.stat()
        if status.st_uid not in allowed:
            message = f"{place} belongs to uid {status.st_uid}, so that user can run commands as you"
            judge = warn if trust else bad
            return judge(check, message, f"sudo chown {os.geteuid()} {place}, or use a folder that you own")
        who = _other_writers(place)
        if who is not None:
            judge = bad if status.st_mode & stat.S_IWOTH and not trust else warn
            message = f"{place} {who}, so other users can run commands as you"
            return judge(check, message, f"chmod go-w {place}")
    return ok(check, f"{path}; {message}")


def _other_writers(path: Path) -> str | None:
    """Returns "is writable by …" if other users may write to a path; None if not, or for a sticky folder."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "is writable by everyone"
    return "is writable by its group" if status.st_mode & stat.S_IWGRP else None


# Checks the lock folder, and lists the claims on GPUs.


#: The beginnings of the UUIDs of GPUs, after which lock files are named.
_UUID_PREFIXES = ("GPU-", "MIG-", SIMULATED_UUID_PREFIX)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: The mode of a lock file that several users share.
_LOCK_FILE_MODE = 0o666


def gpu_locks(
    data_dir: DataDir,
    simulated: bool,
    env: Mapping[str, str] = os.environ,
    system_folder: Path = SYSTEM_FOLDER,
) -> Iterator[Finding]:
    """Yields a finding about the lock folder and, if it can be used, one about the claims in it.

    simulated: whether `start` would simulate the GPUs.
    """
    try:
        folder = find_lock_folder(env, system_folder)
    except UsageError as error:
        message, _, remedy = str(error).partition("; ")
        yield bad("lock folder", message, remedy)
        return
    try:
        problem = folder_problem(folder)
    except OSError as error:
        remedy = f"set {VARIABLE} to a folder that you can write to"
        yield bad("lock folder", f"{folder} cannot be used: {error.strerror}", remedy)
        return
    if problem is not None:
        yield bad("lock folder", f"{folder} {problem.text}", problem.remedy)
        return
    path = ClaimFolder.of(folder, str(data_dir.simulation) if simulated else None).path
    yield _other_folder_of_scheduler(data_dir, path) or _users_of(
        folder, bool(env.get(VARIABLE)), system_folder
    )
    yield _claims(path)


def _other_folder_of_scheduler(data_dir: DataDir, path: Path) -> Finding | None:
    """Returns a finding if the scheduler is running and has its lock files in another folder."""
    if data_dir.other_host() is not None or scheduler_pid(data_dir.lock) is None:
        return None
    used = read_meta(data_dir.database, LOCK_FOLDER_KEY)
    if used in (None, str(path)):
        return None
    message = f"{path}, but the lock files of the running scheduler are in {used}"
    return warn("lock folder", message, f"set {VARIABLE} to the same folder, or restart the scheduler")


def _users_of(folder: Path, is_named: bool, system_folder: Path) -> Finding:
    """Returns the finding about the users who share a usable lock folder."""
    exists = os.path.lexists(folder)
    mode = os.stat(folder).st_mode if exists else 0
    text = f"{folder}{f', named by {VARIABLE}' if is_named else ''}{'' if exists else ' (not created yet)'}"
    if is_named and folder != system_folder and os.path.lexists(system_folder):
        message = f"{text}; programs without this variable use {system_folder} and do not see the same claims"
        return warn("lock folder", message, f"unset {VARIABLE}")
    if mode & _OTHERS_WRITE:
        users = "all users" if mode & stat.S_IWOTH else "the users of its group"
        return ok("lock folder", f"{text}, shared by {users}")
    private = f"{text}; only your own programs see each other's claims"
    make = f"`sudo install -d -m 1777 {system_folder}`{f' and unset {VARIABLE}' if is_named else ''}"
    return ok(
        "lock folder",
        f"{private}; while no job runs, an administrator can make a folder for all users: {make}",
    )


def _claims(folder: Path) -> Finding:
    """Returns the finding about the lock files in a folder, which need not exist."""
    held: dict[str, Sequence[GpuClaim]] = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(_UUID_PREFIXES))
        is_shared = bool(os.stat(folder).st_mode & _OTHERS_WRITE)
    except FileNotFoundError:
        names, is_shared = [], False
    except OSError as error:
        return bad(
            "GPU claims",
            f"{folder} cannot be read: {error.strerror}",
            f"run `chmod u+r {shlex.quote(str(folder))}`",
        )
    for name in names:
        path = folder / name
        try:
            held[name] = claims_of(read_gpu_locks(folder, name), None)
            check_writable(folder, name)
            mode = os.stat(path).st_mode
        except OSError as error:
            problem, _, remedy = lock_problem(error).partition("; ")
            return bad("GPU claims", problem, remedy or f"check the permissions of {path}")
        if is_shared and mode & _LOCK_FILE_MODE != _LOCK_FILE_MODE:
            message = f"{path} has mode {stat.S_IMODE(mode):o}, so not every user can claim this GPU"
            return bad("GPU claims", message, f"its owner must run `chmod 1666 {shlex.quote(str(path))}`")
    texts = [f"{name}: {', '.join(map(_text, claims))}" for name, claims in held.items() if claims]
    total = count_noun(sum(map(len, held.values())), "claim")
    return ok("GPU claims", f"{total} in {folder}: {'; '.join(texts)}" if texts else "none")


def _text(claim: GpuClaim) -> str:
    amount = "the whole GPU" if claim.mib is None else f"{claim.mib} MiB"
    user = f" of {claim.user}" if claim.user else ""
    return f"{pid_text(claim.pid)}{user} ({amount}{', a job' if claim.by_scheduler else ''})"
