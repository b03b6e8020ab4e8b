"""Checks the options, files, folders and store of `start` before anything is created."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.config import JOBS_FILE, LLM_CONFIG, PIPE_REMEDY, StartOptions
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.old_sessions import REFUSAL, REMEDY, old_sessions
from gpu_scheduler.intake.jobs_file_text import MAX_BYTES as LARGEST_JOBS_FILE
from gpu_scheduler.intake.jobs_file_text import JobsFile
from gpu_scheduler.runner.process_scan import shows_own_pids
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.new_store import check_encoding, check_state_file, recorded_gpus
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.store.state_file import imports_old_state_file
from gpu_scheduler.system.lock_folder import ClaimFolder, find_lock_folder
from gpu_scheduler.system.safe_file import (
    MAX_JSON_BYTES,
    FileProblem,
    ProblemKind,
    inspect,
    writable_by_others,
)


def check_proc() -> None:
    """Raises SchedulerError if /proc shows another pid namespace, because its pids must not be signalled."""
    if not shows_own_pids():
        raise SchedulerError(
            "/proc does not show the processes of this container; mount a new one"
            " (`mount -t proc proc /proc`), or add --mount-proc to `unshare --pid`"
        )


def check_paths(options: StartOptions) -> None:
    """Checks the paths that the options give. Raises UsageError with the option, the path and the remedy."""
    _check_path_encoding(options)
    check_state_file(options.state_file)
    if options.jobs_file:
        _check_jobs_file(options)
    try:
        LogFolder.from_option(options.log_dir).create()
    except OSError as error:
        named = error.filename if options.log_dir is None else f"--log-dir {options.log_dir}"
        raise UsageError(f"{named}: {error.strerror}; name a folder that you own with --log-dir") from None


def claim_folder_of(options: StartOptions, data_dir: DataDir) -> ClaimFolder:
    """Returns the folder in which the runners claim GPUs, which need not exist.

    Raises UsageError if the variable that names it cannot be used.
    """
    simulation = str(data_dir.simulation) if options.simulated else None
    return ClaimFolder.of(find_lock_folder(), simulation)


def check_store(options: StartOptions, data_dir: DataDir) -> None:
    """Raises UsageError if the stored jobs ran on real GPUs and this start simulates GPUs, or vice versa.

    The options --fresh and --keep-history allow such a start.
    """
    # If a scheduler is running or another host owns the store, the start is refused later for that reason.
    busy = data_dir.other_host() is not None or scheduler_pid(data_dir.lock) is not None
    if options.fresh or options.keep_history or busy:
        return
    found = recorded_gpus(data_dir.database)
    if found is not None and found.conflicts_with(options.simulated):
        raise UsageError("\n".join(found.refusal(data_dir.folder)))


def check_old_sessions(options: StartOptions, data_dir: DataDir) -> list[str]:
    """Returns warnings about live sessions of the older scheduler.

    Raises SchedulerError if there are any and this start would import the older scheduler's state file.
    """
    now = time.time()
    sessions = [session.describe(now) for session in old_sessions()]
    if sessions and not options.ignore_old_sessions and imports_old_state_file(data_dir):
        raise SchedulerError("\n  ".join([REFUSAL, *sessions]) + f"\n{REMEDY}")
    return [f"a job of the older scheduler is still running: {session}" for session in sessions]


def _check_path_encoding(options: StartOptions) -> None:
    """Rejects paths that are not valid UTF-8, because the store cannot contain them."""
    paths = {
        "the working folder": os.getcwd(),
        "--state-file": options.state_file,
        "--data-dir": options.data_dir,
        "--jobs-file": options.jobs_file,
        "--llm-config": options.llm_config,
        "--log-dir": options.log_dir,
        "--conda-sh": options.conda_sh,
    }
    check_encoding(paths)


def _check_jobs_file(options: StartOptions) -> None:
    path = options.jobs_file
    found: object = FileProblem(ProblemKind.NOT_REGULAR)
    if path != "-":
        found = JobsFile(Path(path), trust=options.trust_files).read()
    if not isinstance(found, FileProblem):
        return
    if found.kind is not ProblemKind.MISSING:
        remedy = found.remedy or "use a text file of jobs that you can read"
        if found.kind is ProblemKind.NOT_REGULAR and not os.path.isdir(path):
            remedy = PIPE_REMEDY
        raise UsageError(f"--jobs-file {path}: {found.description}; {remedy}")
    # Without a file of the usual name, the queue consists of submitted jobs.
    has_queue = DataDir.of(options.state_file, options.data_dir).database.exists()
    if options.drain and not (path == JOBS_FILE and has_queue):
        raise UsageError(
            f"--jobs-file {path}: does not exist; --drain requires an existing file or jobs that were queued"
            " with `submit`"
        )


#: The remedy for the main log, which has no option of its own.
_MAIN_LOG_REMEDY = (
    "choose a --state-file in a folder that you own, which then has its own log, or `start --trust-files`"
)
#: The problems with a file for which `start` is refused.
_REFUSED_KINDS = (
    ProblemKind.OTHER_OWNER,
    ProblemKind.OTHER_OWNER_LINK,
    ProblemKind.WORLD_WRITABLE,
    ProblemKind.LINK,
)


def check_files(options: StartOptions, data_dir: DataDir) -> list[str]:
    """Returns warnings about files that their group can change, and about a folder that everyone can change.

    Raises UsageError for a file that other users can change and for a main log that is a link.
    """
    shared = []
    for path, most in _files_to_check(options, data_dir):
        found = inspect(path, most, trust=options.trust_files, follow_links=most is not None)
        if isinstance(found, FileProblem):
            if found.kind in _REFUSED_KINDS:
                remedy = (
                    _MAIN_LOG_REMEDY
                    if (path, found.kind) == (data_dir.main_log, ProblemKind.OTHER_OWNER)
                    else found.remedy
                )
                raise UsageError(f"{path}: {found.description}; {remedy}")
        elif writable_by_others(found):
            shared.append(str(path))
    return [
        *_shared_file_warnings(shared, trust=options.trust_files),
        *_folder_warnings(data_dir.folder.parent),
    ]


def _files_to_check(options: StartOptions, data_dir: DataDir) -> Iterator[tuple[Path, int | None]]:
    """Yields the files that determine which commands run, and the main log, each with its size limit."""
    if options.jobs_file:
        yield Path(os.path.abspath(options.jobs_file)), LARGEST_JOBS_FILE
    yield Path(os.path.abspath(options.llm_config or LLM_CONFIG)), MAX_JSON_BYTES
    yield data_dir.state_file, MAX_JSON_BYTES
    yield data_dir.main_log, None


def _shared_file_warnings(shared: list[str], *, trust: bool) -> Iterator[str]:
    if shared:
        group, verb = ("its group", "is") if len(shared) == 1 else ("their groups", "are")
        who = "other users, so they" if trust else f"{group}, so other users"
        yield f"{', '.join(shared)} {verb} writable by {who} can run commands as you"


def _folder_warnings(folder: Path) -> Iterator[str]:
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{folder} is writable by everyone, so any user can replace the files in it: `chmod o-w` it"
