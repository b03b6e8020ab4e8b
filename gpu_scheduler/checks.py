"""Validates the options of `start` before anything is made: its files and folders, and its record."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.config import LLM_CONFIG, StartOptions
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.filelook import LARGEST as LARGEST_JOBS_FILE
from gpu_scheduler.intake.filelook import JobsFile
from gpu_scheduler.intake.pauses import imports_older
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.oldsessions import STILL_RUN, WHEN_ENDED, old_sessions
from gpu_scheduler.runner.protocol import shows_own_pids
from gpu_scheduler.safefile import JSON_BYTES, FileProblem, Kind, look, writable_by_others
from gpu_scheduler.store.gpukind import recorded
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import scheduler_pid


def check_proc() -> None:
    """Raises SchedulerError where /proc is that of another pid namespace: its pids are not ours to signal."""
    if not shows_own_pids():
        raise SchedulerError(
            "/proc does not show the processes of this container: mount one that does"
            " (`mount -t proc proc /proc`), or add --mount-proc to `unshare --pid`"
        )


def check_paths(options: StartOptions) -> None:
    """Raises UsageError naming the option, the path and the remedy."""
    _check_names(options)
    _check_state_file(options.state_file)
    if options.jobs_file:
        _check_jobs_file(options)
    try:
        LogFolder.of(options.log_dir).make()
    except OSError as error:
        named = error.filename if options.log_dir is None else f"--log-dir {options.log_dir}"
        raise UsageError(f"{named}: {error.strerror}; name a folder of yours with --log-dir") from None


def check_record(options: StartOptions, home: Home) -> None:
    """Raises UsageError if the record has jobs of the other kind of GPUs and nothing says what of them."""
    # A running scheduler, or another host, is the stronger reason to refuse, and is told later.
    busy = home.foreign() is not None or scheduler_pid(home.lock) is not None
    if options.fresh or options.keep_history or busy:
        return
    found = recorded(home.database)
    if found is not None and found.is_other_than(options.simulated):
        raise UsageError("\n".join(found.refusal(home.folder)))


def check_old_sessions(options: StartOptions, home: Home) -> list[str]:
    """Returns warnings about live sessions of the older scheduler. Raises SchedulerError if its state file
    is to be taken over beside them."""
    sessions = old_sessions()
    if sessions and not options.ignore_old_sessions and imports_older(home):
        raise SchedulerError("\n  ".join([STILL_RUN, *map(str, sessions)]) + f"\n{WHEN_ENDED}")
    return [f"a job of the older scheduler still runs: {session}" for session in sessions]


def _check_names(options: StartOptions) -> None:
    """Refuses paths that the record, whose text is UTF-8, cannot hold."""
    paths = {
        "the working folder": os.getcwd(),
        "--state-file": options.state_file,
        "--data-dir": options.data_dir,
        "--jobs-file": options.jobs_file,
        "--llm-config": options.llm_config,
        "--log-dir": options.log_dir,
        "--conda-sh": options.conda_sh,
    }
    for what, path in paths.items():
        try:
            (path or "").encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{what} {path}: a name in it is not UTF-8, which the record cannot hold; rename it"
            ) from None


def _check_state_file(path: str) -> None:
    if os.path.isdir(path) or path.endswith("/"):
        raise UsageError(
            f"--state-file {path}: is a folder; name a file in it, such as gpu_scheduler_state.json"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--state-file {path}: there is no folder {folder}; make it first")


def _check_jobs_file(options: StartOptions) -> None:
    path = options.jobs_file
    seen = JobsFile(Path(path), trust=options.trust_files).look()
    if seen.state == "missing" and options.drain:
        raise UsageError(f"--jobs-file {path}: there is no such file; with --drain it must exist")
    if seen.state == "unreadable":
        remedy = seen.remedy or "name a text file of jobs that you may read"
        raise UsageError(f"--jobs-file {path}: {seen.problem}; {remedy}")


#: The main log has no option of its own.
_OTHER_LOG = "name a --state-file in a folder of yours, which has its own log, or `start --trust-files`"
#: Why a start goes on no further, where a file is not used.
_REFUSED = (Kind.FOREIGN, Kind.FOREIGN_LINK, Kind.WORLD_WRITABLE, Kind.LINK)


def check_files(options: StartOptions, home: Home) -> list[str]:
    """Returns a warning about files that their group may change, and one about a folder that everybody may.

    Raises UsageError for a file that others may change, or the main log being a link.
    """
    shared = []
    for path, most in _files(options, home):
        found = look(path, most, trust=options.trust_files, follow=most is not None)
        if isinstance(found, FileProblem):
            if found.kind in _REFUSED:
                remedy = _OTHER_LOG if (path, found.kind) == (home.log, Kind.FOREIGN) else found.remedy
                raise UsageError(f"{path}: {found.says}; {remedy}")
        elif writable_by_others(found):
            shared.append(str(path))
    return [*_of_group(shared, trust=options.trust_files), *_of_folder(home.folder.parent)]


def _files(options: StartOptions, home: Home) -> Iterator[tuple[Path, int | None]]:
    """The files that decide what runs, with the largest size of those that are read."""
    if options.jobs_file:
        yield Path(os.path.abspath(options.jobs_file)), LARGEST_JOBS_FILE
    yield Path(os.path.abspath(options.llm_config or LLM_CONFIG)), JSON_BYTES
    yield home.state_file, JSON_BYTES
    yield home.log, None


def _of_group(shared: list[str], *, trust: bool) -> Iterator[str]:
    if shared:
        who = "others" if trust else "its group"
        yield f"{', '.join(shared)} may be written by {who}, who can change what runs here"


def _of_folder(folder: Path) -> Iterator[str]:
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{folder} may be written by everybody, who can replace what lies in it: `chmod o-w` it"
