"""The reason why one GPU cannot accept a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_scheduler.core.model.gpu import Suspicion
from gpu_scheduler.core.model.stored_value import StoredValue

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu_claim import GpuClaim
    from gpu_scheduler.core.model.gpu_fault import GpuFault


class ObstacleKind(str, Enum):
    """The kind of an obstacle. The FOREIGN_* kinds are about processes that do not belong to our jobs."""

    PAUSED = "paused"
    NOT_SAMPLED = "not sampled"
    FAULT = "fault"
    SUSPECT = "suspect"
    #: The last attempt of the job failed there, and another GPU could hold the job.
    FAILED_HERE = "failed here"
    QUARANTINED = "quarantined"
    RELEASING = "releasing"
    AWAITING_MEMORY = "awaiting memory release"
    BUSY = "busy"
    EXCLUSIVE = "exclusive"
    #: Kept for a job for which others are preempted, or which has been overtaken too often.
    RESERVED = "reserved"
    SHARE = "share"
    MEMORY = "memory"
    MEMORY_UNKNOWN = "memory unknown"
    FOREIGN_MEMORY = "foreign memory"
    FOREIGN_LOAD = "foreign load"
    FOREIGN_PROCESS = "foreign process"
    CLAIMED = "claimed"
    CLAIMS_UNKNOWN = "claims unknown"


def _fault(values: dict[str, Any]) -> GpuFault:
    from gpu_scheduler.core.model.gpu_fault import GpuFault

    return GpuFault.from_values(values)


def _claims(listed: Iterable[dict[str, Any]]) -> tuple[GpuClaim, ...]:
    from gpu_scheduler.core.model.gpu_claim import GpuClaim

    return tuple(GpuClaim.from_values(values) for values in listed)


@dataclass(frozen=True)
class GpuObstacle(StoredValue):
    """The obstacle on one GPU. gpu: the index of the GPU.

    job_id               QUARANTINED: the job that held the GPU; RESERVED: the job for which it is kept;
                         FAILED_HERE: the job itself
    reserved_from        RESERVED by queue order: when that job is expected to start, in wall seconds
    overtakes            RESERVED by queue order: how often that job has been overtaken
    pids                 QUARANTINED: the first few of the job's processes that have not ended
    fault                FAULT: the fault of the GPU
    suspicion            SUSPECT: why it is suspect
    free                 SHARE: share that is left, in thousandths; MEMORY: MiB that a job can still declare
    foreign_mib          memory that foreign processes use, in MiB, if it is part of the obstacle
    foreign_pid          the foreign process that uses the most memory, if the driver lists the processes
    processes_listed     if there is no foreign_pid: whether the driver lists the processes
    foreign_load         FOREIGN_LOAD: load that foreign processes cause, in percent
    foreign_peak_mib     MEMORY: highest memory use of the foreign processes, if above their current use
    claims               CLAIMED: the claims of other programs on the GPU
    detail               CLAIMS_UNKNOWN: why the GPU cannot be claimed
    """

    gpu: int
    kind: ObstacleKind
    job_id: int | None = None
    pids: tuple[int, ...] = ()
    fault: GpuFault | None = None
    suspicion: Suspicion | None = None
    free: int | None = None
    foreign_mib: int | None = None
    foreign_pid: int | None = None
    processes_listed: bool | None = None
    foreign_load: int | None = None
    foreign_peak_mib: int | None = None
    claims: tuple[GpuClaim, ...] = ()
    detail: str | None = None
    reserved_from: float | None = None
    overtakes: int | None = None

    _BUILD: ClassVar = {
        "kind": ObstacleKind, "pids": tuple, "fault": _fault, "claims": _claims,
        "suspicion": Suspicion.from_values,
    }  # fmt: skip
