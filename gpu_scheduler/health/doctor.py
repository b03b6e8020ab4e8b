"""Checks this machine and the scheduler's files for problems, with one small function per check.

The checks read files and run programs with a timeout. They change nothing.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gpu_scheduler.attempts.executors import screen_problem
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.config import VERSION, ProbeKind
from gpu_scheduler.core.command.build import parse_session_list
from gpu_scheduler.core.model.finding import Check, Finding, bad, from_health_issue, ok, warn
from gpu_scheduler.core.model.gpu import SIMULATED_UUID_PREFIX, GpuClaim, GpuSample, format_ranges
from gpu_scheduler.core.text.formatting import count_noun, pid_text
from gpu_scheduler.errors import GpuStateError, SchedulerError, UsageError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient, restrict_to_visible
from gpu_scheduler.health.job_checks import list_environments
from gpu_scheduler.health.sessions import REFUSAL, REMEDY, old_sessions
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
from gpu_scheduler.store.state_file import imports_old_state_file
from gpu_scheduler.system import safe_file
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
from gpu_scheduler.system.run_program import run_program
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, is_shared, kind_of

#: The number of inotify watches that a scheduler with a few hundred jobs uses.
_MIN_WATCHES = 1024
#: The number of ptys that should be free.
_MIN_FREE_PTYS = 64
#: 2024-01-01 in seconds since 1970. A clock that shows an earlier time was never set.
_EARLIEST_VALID_S = 1_704_067_200.0
#: A file's modification time may be later than the clock by at most this many seconds.
_MAX_AHEAD_S = 60.0


def inotify(limits: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Returns the finding about inotify: whether it is available, and how many watches are allowed."""
    from inotify_simple import INotify

    instances, watches = (_read_number(limits / f"max_user_{name}") for name in ("instances", "watches"))
    try:
        INotify().close()
    except OSError as error:
        message = f"no instance is available ({error.strerror}); the scheduler polls files every few seconds"
        remedy = f"sudo sysctl fs.inotify.max_user_instances={4 * (instances or 128)}"
        return warn("inotify", message, remedy)
    if watches is not None and watches < _MIN_WATCHES:
        message = f"limit: {watches} watches; with many jobs, the scheduler polls files every few seconds"
        return warn("inotify", message, "sudo sysctl fs.inotify.max_user_watches=65536")
    return ok("inotify", f"limits: {_or_unknown(instances)} instances, {_or_unknown(watches)} watches")


def ptys(limits: Path = Path("/proc/sys/kernel/pty")) -> Finding:
    """Returns the finding about the number of free ptys. Each job in Screen takes two."""
    most, used = _read_number(limits / "max"), _read_number(limits / "nr")
    if most is not None and used is not None and most - used < _MIN_FREE_PTYS:
        message = f"{most - used} of {most} are free; each job in Screen takes two"
        return warn("ptys", message, f"sudo sysctl kernel.pty.max={2 * most}")
    return ok("ptys", f"{_or_unknown(used)} of {_or_unknown(most)} in use")


def clock(now: float, files: Iterable[Path]) -> Finding:
    """Returns the finding about the clock. now: seconds since 1970; files: some files written before now."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _EARLIEST_VALID_S:
        remedy = "set the clock (timedatectl)"
        return warn("clock", f"{shown}: the clock was never set, so ages and times are wrong", remedy)
    ahead = [path for path in files if _modified_at(path) > now + _MAX_AHEAD_S]
    if ahead:
        message = f"{shown}, which is earlier than the time of the last change to {ahead[0]}"
        return warn("clock", message, "set the clock (timedatectl); this does not correct recorded times")
    return ok("clock", shown)


def _modified_at(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


# The software that the scheduler needs (Python, packages, conda), and the user that it runs as.

#: The modules that the program imports, each with the package that provides it.
PACKAGES = {
    "GPUtil": "GPUtil",
    "pynvml": "nvidia-ml-py",
    "inotify_simple": "inotify_simple",
    "rich": "rich",
    "rich_argparse": "rich-argparse",
    "shtab": "shtab",
    "msgspec": "msgspec",
    **({"setuptools": "setuptools"} if sys.version_info >= (3, 12) else {}),
}
_MAX_ENVIRONMENTS = 12


def python() -> Finding:
    """Returns the finding about the interpreter, which runs the scheduler and its runners."""
    found = ".".join(map(str, sys.version_info[:3]))
    if not sys.executable:
        remedy = "run the program with a Python interpreter whose path can be determined"
        return bad("Python", f"{found}, but the path of the interpreter is unknown", remedy)
    return ok("Python", f"{found}, {sys.executable}")


def packages(wanted: Mapping[str, str] = PACKAGES) -> Finding:
    """Returns the finding about this package and its dependencies: their versions, or which are missing."""
    missing = [package for module, package in wanted.items() if find_spec(module) is None]
    if missing:
        return bad("packages", f"missing: {', '.join(missing)}", "run `make install` or `pip install .`")
    found = ", ".join(f"{package} {_package_version(package)}" for package in wanted.values())
    return ok("packages", f"gpu-scheduler {VERSION}; {found}")


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown)"


def user(uid: int) -> Finding:
    """Returns the finding about the user that jobs run as."""
    if uid == 0:
        message = "root: anyone who can write to the jobs file can run commands as root"
        return warn("user", message, "run the scheduler as a dedicated user")
    return ok("user", f"uid {uid}")


def conda(conda_sh: str | None, is_named: bool) -> Iterator[Finding]:
    """Yields findings about conda.

    conda_sh: the path of conda's script, None if it was not found; is_named: whether --conda-sh named it.
    """
    if conda_sh is None:
        yield ok("conda", "not found; jobs whose lines name no environment run without conda")
        return
    if not os.path.isfile(conda_sh):
        remedy = (
            "pass the installation's etc/profile.d/conda.sh to --conda-sh"
            if is_named
            else "install conda again"
        )
        yield bad("conda", f"{conda_sh} does not exist", remedy)
        return
    names = list_environments(conda_sh)
    if isinstance(names, str):
        yield bad("conda", f"{conda_sh}: {names}", f"run `. {shlex.quote(conda_sh)}; conda env list`")
        return
    more = f" and {len(names) - _MAX_ENVIRONMENTS} more" if len(names) > _MAX_ENVIRONMENTS else ""
    listed = ", ".join(names[:_MAX_ENVIRONMENTS]) or "none"
    yield ok("conda", f"{conda_sh}; environments: {listed}{more}")


# The NVIDIA driver, and each GPU with the probe that `start` would use.

#: Maximum number of seconds for the first sample.
PROBE_TIMEOUT_S = 5.0


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """Returns the finding about the kernel driver."""
    try:
        text = version.read_text("utf-8", "replace")
    except OSError:
        remedy = "install the driver, or use --simulate 4"
        return warn("driver", "the NVIDIA driver is not loaded", remedy)
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return ok("driver", f"NVIDIA {found[1] if found else text.strip().splitlines()[0]}")


def probe(
    kind: ProbeKind, simulate: str | None, visible: str | None, simulation: str | None = None
) -> Iterator[Finding]:
    """Yields a finding for each GPU.

    visible: the value of CUDA_VISIBLE_DEVICES, None if it is not set. simulation: the folder in which
    simulated jobs write their usage.
    """
    with ProbeClient(kind, simulate, simulation) as asked:
        try:
            snapshot = asked.sample(PROBE_TIMEOUT_S)
        except GpuStateError as error:
            message, _, remedy = str(error).partition("\n")
            yield bad("probe", message, remedy or "check whether `nvidia-smi` answers")
            return
    managed, note = restrict_to_visible(snapshot.gpus, visible)
    if note is not None:
        judge = warn if managed else bad
        yield judge("CUDA_VISIBLE_DEVICES", note, "unset CUDA_VISIBLE_DEVICES to use all GPUs")
    if snapshot.note:
        yield warn("probe", snapshot.note, "install nvidia-ml-py and check the driver, to see the processes")
    for gpu in snapshot.gpus:
        yield _gpu(gpu)


def _gpu(gpu: GpuSample) -> Finding:
    if gpu.fault is not None:
        remedy = "check the GPU with `nvidia-smi`, and look at the kernel log"
        return bad("GPU", f"{gpu.name}: {gpu.fault}", remedy, gpu.index)
    unknown = [
        name for name, value in (("memory", gpu.used_mib), ("load", gpu.load_percent)) if value is None
    ]
    if unknown:
        message = f"{gpu.name}: {' and '.join(unknown)} cannot be read"
        return warn("GPU", message, f"check the GPU with `nvidia-smi -q -i {gpu.index}`", gpu.index)
    memory = f"{gpu.used_mib} of {gpu.total_mib} MiB in use"
    return ok("GPU", f"{gpu.name}, {memory}, load {gpu.load_percent:.0f} %", gpu.index)


# GNU Screen, which only `--screen` needs, and the jobs of the older scheduler in it.

#: If one of these versions is set-uid root, a local user can become root (CVE-2017-5618, CVE-2025-23395).
_VULNERABLE_VERSIONS = ((4, 5, 0), (5, 0, 0))


def screen(problem: Callable[[], str | None] = screen_problem) -> Iterator[Finding]:
    """Yields findings about Screen's version and whether Screen can create sessions.

    problem: tests Screen as `start` does, and returns why Screen cannot create sessions, or None.
    """
    program = shutil.which("screen")
    if program is None:
        remedy = "install it if jobs should run in sessions: sudo apt-get install screen"
        yield warn("Screen", "not installed; `start --screen` is refused", remedy)
        return
    yield _version(program)
    why = problem()
    if why is not None:
        message, _, remedy = why.partition("\n")
        yield bad("Screen's sockets", message, remedy or "repair Screen, or leave out --screen")
    else:
        yield sockets(
            parse_session_list(run_program([program, "-ls"]).output).folder or os.environ.get("SCREENDIR")
        )


def _version(program: str) -> Finding:
    result = run_program([program, "-v"])
    found = re.search(r"Screen version (\d+)\.(\d+)(?:\.(\d+))?", result.output)
    if found is None:
        remedy = "reinstall it: sudo apt-get install --reinstall screen"
        return bad("Screen", f"{program} -v: {result.failure_reason()}", remedy)
    number = tuple(int(part or 0) for part in found.groups())
    text = f"{'.'.join(map(str, number))}, {program}"
    is_set_uid = bool(os.stat(program).st_mode & stat.S_ISUID)
    if number in _VULNERABLE_VERSIONS and is_set_uid:
        remedy = f"any user can become root through it; run `sudo chmod u-s {program}` and update Screen"
        return bad("Screen", f"{text}, which is set-uid and has a known vulnerability", remedy)
    if is_set_uid:
        remedy = f"sudo chmod u-s {program}; a single user does not need the set-uid bit"
        return warn("Screen", f"{text}, which is set-uid", remedy)
    if number in _VULNERABLE_VERSIONS:
        return warn("Screen", f"{text}, which has a known vulnerability", "update Screen")
    return ok("Screen", text)


def sockets(folder: str | None) -> Finding:
    """Returns the finding about Screen's socket folder. folder: None means the default folder."""
    if folder is None:
        return ok("Screen's sockets", "in the default folder")
    try:
        status = os.stat(folder)
    except OSError as error:
        return bad("Screen's sockets", f"{folder}: {error.strerror}", f"mkdir -m 700 {folder}")
    if status.st_uid != os.geteuid():
        remedy = "set SCREENDIR to a folder that you own, or unset it"
        return bad("Screen's sockets", f"{folder} belongs to uid {status.st_uid}", remedy)
    if stat.S_IMODE(status.st_mode) != 0o700:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        return bad("Screen's sockets", f"{folder} has mode {mode}", f"chmod 700 {folder}")
    return ok("Screen's sockets", folder)


def older_sessions(data_dir: DataDir, now: float) -> Finding:
    """Returns the finding about live sessions of the older scheduler; bad if `start` would be refused.

    now: seconds since 1970.
    """
    found = old_sessions()
    if not found:
        return ok("older sessions", "none: no job of the older scheduler runs in Screen")
    named = "; ".join(session.describe(now) for session in found)
    if imports_old_state_file(data_dir):
        return bad("older sessions", f"{REFUSAL}: {named}", REMEDY)
    remedy = "these jobs of the older scheduler use GPUs but are not in the store"
    return warn("older sessions", named, remedy)


# The scheduler's files and folders: whether they can be used, and whether other users could change them.

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
            remedy = f"look for the reason in {data_dir.main_log}"
            yield warn("backups", f"{message}, although a scheduler is running", remedy)
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


# The lock folder, and the claims on GPUs.

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
        remedy = f"run `chmod u+r {shlex.quote(str(folder))}`"
        return bad("GPU claims", f"{folder} cannot be read: {error.strerror}", remedy)
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
