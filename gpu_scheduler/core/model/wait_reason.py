"""The reason why a job waits. It is stored for a group of jobs or for one job, and front ends show it."""

from __future__ import annotations

from enum import Enum

from gpu_scheduler.core.model.gpu import GpuClaim, GpuFault, Suspicion
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.stored_value import StoredValue

# The reason why one GPU cannot accept a job.


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


class GpuObstacle(StoredValue, frozen=True):
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


class WaitKind(str, Enum):
    """The kind of a wait reason.

    A group of jobs with one resource spec waits for GPUs, or for the storage that every start needs. A single
    job waits for its line of the jobs file, a user, a delay or processes. The kinds from HELD on are not
    stored, because they follow from other columns or because the scheduler has not yet considered the job.
    """

    STORAGE = "storage"
    GPUS_UNREADABLE = "gpus unreadable"
    #: The job would start, but another one has just started; `cause` is `--start-interval` in seconds.
    START_INTERVAL = "start interval"
    NO_FREE_GPU = "no free gpu"
    TOO_FEW_GPUS = "too few gpus"
    GPUS_TOO_SMALL = "gpus too small"
    #: As many jobs of the group `cause` run as may run at the same time.
    GROUP_FULL = "group full"
    #: As many jobs without a GPU run as may run at the same time (`--cpu-jobs`).
    CPU_JOBS_FULL = "cpu jobs full"
    LINE_MALFORMED = "line malformed"
    LINE_REMOVED = "line removed"
    LINE_CHANGED = "line changed"
    #: The job comes from a Redis queue, which has not confirmed yet that this machine may run it.
    NOT_CONFIRMED = "not confirmed"
    HELD = "held"
    #: GPUs are reserved for the job, and jobs are preempted for it.
    PREEMPTING = "preempting"
    #: GPUs are reserved for the job, because it has been overtaken too often.
    RESERVED = "reserved"
    #: The job waits for other jobs.
    PARENTS = "parents"
    RETRY_DELAY = "retry delay"
    PROCESSES_LEFT = "processes left"
    SHORTAGE = "shortage"
    RELAUNCHED = "relaunched"
    REQUEST = "request"
    #: The job is a running process that no runner watches; `cause` is its pid.
    NOT_WATCHED = "not watched"
    NOT_TRIED = "not tried"
    NO_SCHEDULER = "no scheduler"
    #: A reason that only another version defines; `cause` is its stored text.
    UNKNOWN = "unknown"


class WaitReason(StoredValue, frozen=True):
    """One reason, with the data of its kind.

    cause          STORAGE, GPUS_UNREADABLE: the problem; HELD: "user", "line" or the outcome of the attempt
                   that ended; REQUEST: the requested action; NOT_WATCHED: the pid of the process;
                   START_INTERVAL: the interval in seconds;
                   GROUP_FULL: the group
    need           the need of each job, for the kinds that concern GPUs
    gpus           NO_FREE_GPU, RESERVED: number of GPUs that would accept the job now; TOO_FEW_GPUS: number
                   of managed GPUs that the job may use
    obstacles      NO_FREE_GPU: why the other GPUs would not accept the job, except those full of our own jobs
    managed        TOO_FEW_GPUS: number of managed GPUs
    allowed        TOO_FEW_GPUS, GPUS_TOO_SMALL: number of GPUs that the line allows; None if any
    size_mib       GPUS_TOO_SMALL: memory of the Nth largest GPU that the job may use, where N is the number
                   of GPUs that it needs
    largest_mib    GPUS_TOO_SMALL: memory of the largest GPU that the job may use
    margin_mib     GPUS_TOO_SMALL: memory on each GPU that is never allocated to jobs
    line_number    LINE_MALFORMED, LINE_CHANGED: number of the line
    victims        PREEMPTING: the jobs that are preempted and have not left their GPUs yet
    reserved       RESERVED: the indices of the GPUs
    reserved_from  RESERVED: when the job is expected to start, in seconds since 1970
    overtakes      RESERVED: how often the job had been overtaken
    running        GROUP_FULL: number of jobs of the group that run, or for which GPUs are reserved;
                   CPU_JOBS_FULL: number of jobs without a GPU that run
    max_running    GROUP_FULL, CPU_JOBS_FULL: how many of them may run
    launches       RELAUNCHED: number of launches of an attempt that no runner has claimed yet
    due_at         the time, in seconds since boot, at which a job whose line was removed is cancelled, a
                   changed line takes effect or a delayed job starts; None if unknown
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
    victims: tuple[int, ...] = ()
    due_at: float | None = None
    reserved: tuple[int, ...] = ()
    reserved_from: float | None = None
    overtakes: int | None = None
    running: int = 0
    max_running: int = 0

    @property
    def is_infeasible(self) -> bool:
        """True if the job could not fit even if all current GPUs were empty and unpaused."""
        return self.kind in (WaitKind.TOO_FEW_GPUS, WaitKind.GPUS_TOO_SMALL)

    @classmethod
    def unknown(cls, text: str) -> WaitReason:
        """Returns the reason that another version stored as this text."""
        return WaitReason(WaitKind.UNKNOWN, text)
