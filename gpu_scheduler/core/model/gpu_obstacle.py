"""The reason why one GPU cannot accept a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_scheduler.core.model.stored_value import StoredValue

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu_fault import GpuFault


class ObstacleKind(str, Enum):
    """The kind of an obstacle. The FOREIGN_* kinds are about processes that do not belong to our jobs."""

    PAUSED = "paused"
    NOT_SAMPLED = "not sampled"
    FAULT = "fault"
    QUARANTINED = "quarantined"
    RELEASING = "releasing"
    AWAITING_MEMORY = "awaiting memory release"
    BUSY = "busy"
    SHARE = "share"
    MEMORY = "memory"
    MEMORY_UNKNOWN = "memory unknown"
    FOREIGN_MEMORY = "foreign memory"
    FOREIGN_LOAD = "foreign load"
    FOREIGN_PROCESS = "foreign process"


def _fault(values: dict[str, Any]) -> GpuFault:
    from gpu_scheduler.core.model.gpu_fault import GpuFault

    return GpuFault.from_values(values)


@dataclass(frozen=True)
class GpuObstacle(StoredValue):
    """The obstacle on one GPU. gpu: the index of the GPU.

    job_id, pids         QUARANTINED: the job, and the first few of its processes that have not ended
    fault                FAULT: the fault of the GPU
    free                 SHARE: share that is left, in thousandths; MEMORY: MiB that a job can still declare
    foreign_mib          memory that foreign processes use, in MiB, if it is part of the obstacle
    foreign_pid          the foreign process that uses the most memory, if the driver lists the processes
    processes_listed     if there is no foreign_pid: whether the driver lists the processes
    foreign_load         FOREIGN_LOAD: load that foreign processes cause, in percent
    foreign_peak_mib     MEMORY: highest memory use of the foreign processes, if above their current use
    """

    gpu: int
    kind: ObstacleKind
    job_id: int | None = None
    pids: tuple[int, ...] = ()
    fault: GpuFault | None = None
    free: int | None = None
    foreign_mib: int | None = None
    foreign_pid: int | None = None
    processes_listed: bool | None = None
    foreign_load: int | None = None
    foreign_peak_mib: int | None = None

    _BUILD: ClassVar = {"kind": ObstacleKind, "pids": tuple, "fault": _fault}
