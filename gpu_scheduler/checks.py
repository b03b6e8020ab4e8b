"""Validates the options of `start` before anything is made: its files and folders, and its record."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_scheduler.config import StartOptions
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.filelook import JobsFile
from gpu_scheduler.intake.pauses import imports_older
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.oldsessions import STILL_RUN, WHEN_ENDED, old_sessions
from gpu_scheduler.store.gpukind import recorded
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import scheduler_pid


def check_paths(options: StartOptions) -> None:
    """Raises UsageError naming the option, the path and the remedy."""
    _check_names(options)
    _check_state_file(options.state_file)
    if options.jobs_file:
        _check_jobs_file(options.jobs_file, must_exist=options.drain)
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


def _check_jobs_file(path: str, must_exist: bool) -> None:
    look = JobsFile(Path(path)).look()
    if look.state == "missing" and must_exist:
        raise UsageError(f"--jobs-file {path}: there is no such file; with --drain it must exist")
    if look.state == "unreadable":
        raise UsageError(f"--jobs-file {path}: {look.problem}; name a text file of jobs that you may read")
