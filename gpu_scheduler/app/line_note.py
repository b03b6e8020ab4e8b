"""Defines a note about a line of a jobs file: a reason why its job may not run as the user expects."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from gpu_scheduler.core.model.job_spec import Need


class NoteKind(str, Enum):
    """The subject of a note. The comment at each kind lists the keys of the note's data."""

    MODEL_UNKNOWN = "model_unknown"  # model
    SCRIPT_RELATIVE = "script_relative"  # script, cwd
    CWD_MISSING = "cwd_missing"  # cwd
    CONDA_MISSING = "conda_missing"  # name
    CONDA_ENVIRONMENT_MISSING = "conda_environment_missing"  # name, environments
    VENV_MISSING = "venv_missing"  # path
    SCRIPT_MISSING = "script_missing"  # script
    JOB_EXISTS = "job_exists"  # job, state
    JOB_COMPLETED = "job_completed"  # job
    VENV_OF_OTHER_USER = "venv_of_other_user"  # path
    SBATCH_READ = "sbatch_read"  # script, options: the attributes that its #SBATCH lines set
    SBATCH_NOT_READ = "sbatch_not_read"  # script, options
    PARENT_FAILED = "parent_failed"  # job, outcome, retried: the ids of the jobs to retry
    PARENT_NOT_IMPORTED = "parent_not_imported"  # parent: such as "job 2 (eval)" of the file, status
    VARIABLE_IGNORED = "variable_ignored"  # name, value
    GPU_NUMBER = "gpu_number"  # gpu
    ENVIRONMENT = "environment"  # conda: that of a line that names none, venv: the nearest .venv
    NOT_WATCHED = "not_watched"  # path, scheduler_pid, watched: the jobs file that the scheduler watches


class Note(Struct, frozen=True):
    """A note about a line, with the data that belongs to its kind."""

    kind: NoteKind
    data: Mapping[str, object]


class UnmetNeed(Struct, frozen=True):
    """A job's need that the current GPUs cannot meet.

    usable: the number of GPUs that the job may use if there are too few; None if there are enough, but they
    are too small. margin_mib: the memory on each GPU that the scheduler never allocates.
    """

    need: Need
    usable: int | None
    margin_mib: int


#: A plain string is a message from the line parser.
LineNote = Note | UnmetNeed | str
