"""Defines a note about a line of a jobs file: why its job may not run, or not as the user expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.model.need import Need


class NoteKind(str, Enum):
    """The subject of a note. The comments list its data."""

    MODEL_UNKNOWN = "model_unknown"  # model
    SCRIPT_RELATIVE = "script_relative"  # script, cwd
    CWD_MISSING = "cwd_missing"  # cwd
    CONDA_MISSING = "conda_missing"  # name
    CONDA_ENVIRONMENT_MISSING = "conda_environment_missing"  # name, environments
    VENV_MISSING = "venv_missing"  # path
    SCRIPT_MISSING = "script_missing"  # script
    JOB_EXISTS = "job_exists"  # job, state
    JOB_COMPLETED = "job_completed"  # job
    NOT_WATCHED = "not_watched"  # path, scheduler_pid, watched: the jobs file that the scheduler watches


@dataclass(frozen=True)
class Note:
    """A note about a line, with the data of its kind."""

    kind: NoteKind
    data: Mapping[str, object]


@dataclass(frozen=True)
class UnmetNeed:
    """The need of a job that the current GPUs cannot meet.

    usable: number of GPUs that the job may use, None = there are enough of them, but they are too small;
    margin_mib: memory of each GPU that is not given to jobs.
    """

    need: Need
    usable: int | None
    margin_mib: int


#: A text is a message of the parser of lines.
LineNote = Note | UnmetNeed | str
