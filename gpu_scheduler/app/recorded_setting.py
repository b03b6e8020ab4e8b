"""Reads facts from the store about the machine on which the lines of a jobs file will run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.config import JOBS_FILE, StartOptions
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.intake.jobs_file_content import JobsFile
from gpu_scheduler.store.jobs_files import find_jobs_file
from gpu_scheduler.system.safe_file import FileProblem


@dataclass(frozen=True)
class RecordedSetting:
    """The GPUs and the scheduler of a store. Without a readable store, all values are the defaults.

    known_gpus: the indices of the GPUs, None if unknown; cwd: the folder in which the lines of the jobs file
    run, None if unknown; totals_mib: the memory of each GPU whose size is known, by index; options: the
    newest scheduler's options, None if unknown; scheduler_pid: the pid of the running scheduler; jobs_file:
    the file with the lines, "" if there is none.
    """

    known_gpus: frozenset[int] | None = None
    cwd: str | None = None
    totals_mib: Mapping[int, int] = field(default_factory=dict)
    options: StartOptions | None = None
    scheduler_pid: int | None = None
    jobs_file: str = ""


def count_waiting_lines() -> int:
    """Returns how many lines of jobs.txt in this folder wait for a first `start`; 0 if it cannot be read."""
    content = JobsFile(Path(JOBS_FILE)).read()
    lines = () if isinstance(content, FileProblem) else content.splitlines()
    return sum(not line.lstrip().startswith(b"#") for line in lines if line.strip())


def recorded_setting(location: Location, jobs_file: str | None) -> RecordedSetting:
    """Returns the recorded setting for the lines of a jobs file.

    jobs_file: its absolute path; None means the file that the running scheduler watches, or jobs.txt here.
    """
    here = os.path.abspath(JOBS_FILE) if jobs_file is None else jobs_file
    try:
        with open_store(location, read_only=True) as store:
            options, pid = store.recorded_options(), scheduler_pid_of(store)
            path = options.jobs_file if jobs_file is None and pid is not None else here
            file = find_jobs_file(store, path)
            return RecordedSetting(
                frozenset(store.gpu_indices().values()) or None,
                None if file is None else file.cwd,
                {gpu.index: gpu.total_mib for gpu in store.gpus() if gpu.total_mib is not None},
                options,
                pid,
                path,
            )
    except SchedulerError:
        return RecordedSetting(jobs_file=here)
