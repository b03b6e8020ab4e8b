"""Reads from the store the facts about the machine on which a line of a jobs file will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.config import StartOptions
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.jobs_files import find_jobs_file


@dataclass(frozen=True)
class RecordedSetting:
    """The GPUs and the scheduler of a store; the defaults stand for a store that is missing or unreadable.

    known_gpus: indices, None = unknown; cwd: folder in which the lines of the jobs file run, None = unknown;
    totals_mib: GPU index -> its memory, where known; options: of the newest scheduler, None = unknown;
    scheduler_pid: of the running one.
    """

    known_gpus: frozenset[int] | None = None
    cwd: str | None = None
    totals_mib: Mapping[int, int] = field(default_factory=dict)
    options: StartOptions | None = None
    scheduler_pid: int | None = None


def recorded_setting(location: Location, jobs_file: str) -> RecordedSetting:
    """Returns the setting for the lines of a jobs file, which is given by its absolute path."""
    try:
        with open_store(location, read_only=True) as store:
            file = find_jobs_file(store, jobs_file)
            return RecordedSetting(
                frozenset(store.gpu_indices().values()) or None,
                None if file is None else file.cwd,
                {gpu.index: gpu.total_mib for gpu in store.gpus() if gpu.total_mib is not None},
                store.recorded_options(),
                scheduler_pid_of(store),
            )
    except SchedulerError:
        return RecordedSetting()
