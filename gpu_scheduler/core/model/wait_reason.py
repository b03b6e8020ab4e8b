"""The reason why a job waits, as stored for a group of jobs or for one job, and as front ends present it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_scheduler.core.model.stored_value import StoredValue

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle
    from gpu_scheduler.core.model.need import Need


class WaitKind(str, Enum):
    """The kind of a wait reason.

    A group of jobs with one resource spec waits for GPUs, or for the storage that every start needs; a single
    job waits for its line of the jobs file, a user, a delay, or processes. Kinds from HELD on are not stored:
    they follow from other columns, or the scheduler has not decided on the job yet.
    """

    STORAGE = "storage"
    GPUS_UNREADABLE = "gpus unreadable"
    NO_FREE_GPU = "no free gpu"
    TOO_FEW_GPUS = "too few gpus"
    GPUS_TOO_SMALL = "gpus too small"
    LINE_MALFORMED = "line malformed"
    LINE_REMOVED = "line removed"
    LINE_CHANGED = "line changed"
    HELD = "held"
    RETRY_DELAY = "retry delay"
    PROCESSES_LEFT = "processes left"
    SHORTAGE = "shortage"
    RELAUNCHED = "relaunched"
    REQUEST = "request"
    NOT_TRIED = "not tried"
    NO_SCHEDULER = "no scheduler"
    #: A reason of another version, with its stored form as `cause`.
    UNKNOWN = "unknown"


# Imported here to keep commands fast when no such reason is shown.
def _need(values: dict[str, Any]) -> Need:
    from gpu_scheduler.core.model.need import Need

    return Need(**values)


def _obstacles(listed: Iterable[dict[str, Any]]) -> tuple[GpuObstacle, ...]:
    from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle

    return tuple(GpuObstacle.from_values(values) for values in listed)


@dataclass(frozen=True)
class WaitReason(StoredValue):
    """One reason, with the data of its kind.

    cause          STORAGE, GPUS_UNREADABLE: the problem; HELD: "user", "line" or the outcome of the attempt
                   that ended; REQUEST: the requested action
    need           of each job, for the kinds that concern GPUs
    gpus           NO_FREE_GPU: number of GPUs that would accept the job now; TOO_FEW_GPUS: number of managed
                   GPUs that the job may use
    obstacles      NO_FREE_GPU: why other GPUs do not, except those that our own jobs fill
    managed        TOO_FEW_GPUS: number of managed GPUs
    allowed        TOO_FEW_GPUS, GPUS_TOO_SMALL: number of GPUs that the line allows; None = any
    size_mib       GPUS_TOO_SMALL: memory of the last of the largest GPUs that the job could use
    largest_mib    GPUS_TOO_SMALL: memory of the largest GPU that the job could use
    margin_mib     GPUS_TOO_SMALL: memory of a GPU that is not given to jobs
    line_number    LINE_MALFORMED, LINE_CHANGED: the line
    launches       RELAUNCHED: number of launches of an attempt that no runner has claimed yet
    due_at         boot seconds: a job whose line was removed is cancelled then, a changed line takes effect
                   then, a delayed job starts then; None = unknown
    """

    kind: WaitKind
    cause: str = ""
    need: Need | None = None
    gpus: int = 0
    obstacles: tuple[GpuObstacle, ...] = ()
    managed: int = 0
    allowed: int | None = None
    size_mib: int = 0
    largest_mib: int = 0
    margin_mib: int = 0
    line_number: int | None = None
    launches: int = 0
    due_at: float | None = None

    _BUILD: ClassVar = {"kind": WaitKind, "need": _need, "obstacles": _obstacles}

    @property
    def is_infeasible(self) -> bool:
        """Returns whether the job could not fit even on the current GPUs, all empty and unpaused."""
        return self.kind in (WaitKind.TOO_FEW_GPUS, WaitKind.GPUS_TOO_SMALL)

    @classmethod
    def unknown(cls, text: str) -> WaitReason:
        """Returns the reason that another version stored as this text."""
        return WaitReason(WaitKind.UNKNOWN, text)
