"""The reason why a job waits. It is stored for a group of jobs or for one job, and front ends show it."""

from __future__ import annotations

from gpu_scheduler.core.model.gpu import GpuClaim, GpuFault, Suspicion
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.stored_value import Code, StoredValue

# The reason why one GPU cannot accept a job.


_SOON = "it accepts jobs again in a few seconds"
_CHECK = "check the GPU with `nvidia-smi -i {gpu}` and `doctor`"
_WAIT = "wait for the process to end, or end it; or "


# fmt: off
class ObstacleKind(Code):
    """The kind of an obstacle. The FOREIGN_* kinds are about processes that do not belong to our jobs.

    The sentence is a phrase that follows the name of the GPU.
    """

    PAUSED = "paused", "paused", "`resume {gpu}` makes it available again"
    NOT_SAMPLED = "not sampled", "not reported by the probe", _CHECK
    FAULT = "fault", "{fault}", _CHECK
    SUSPECT = "suspect", "{doubt}", f"{_CHECK}; `resume {{gpu}}` uses it again at once"
    #: The last attempt of the job failed there, and another GPU could hold the job.
    FAILED_HERE = (
        "failed here", "job {job_id} failed here, so its retry waits up to 5 min for another one")
    QUARANTINED = "quarantined", "quarantined: job {job_id} left {processes}", "end what is left (kill -9)"
    RELEASING = "releasing", "being released", _SOON
    AWAITING_MEMORY = "awaiting memory release", "awaiting memory release", _SOON
    BUSY = "busy"
    EXCLUSIVE = ("exclusive", "compute mode Exclusive_Process, {user}",
        "`sudo nvidia-smi -i {gpu} -c 0` lets several processes use the GPU")
    #: Kept for a job for which others are preempted, or which has been overtaken too often.
    RESERVED = "reserved", "reserved for job {job_id}{from_time}"
    SHARE = "share", "share {share} free"
    MEMORY = "memory", "{room}"
    MEMORY_UNKNOWN = (
        "memory unknown", "memory unknown", "check the GPU's memory with `nvidia-smi -q -i {gpu}`")
    FOREIGN_MEMORY = ("foreign memory", "{foreign_use}", f"{_WAIT}declare the job's memory, as in"
        " [vram=8G]; or start the scheduler with a higher --mem-threshold")
    FOREIGN_LOAD = ("foreign load", "{load_source} {foreign_load} %",
        f"{_WAIT}start the scheduler with a higher --load-threshold")
    LOAD_UNKNOWN = "load unknown", "load unknown"
    FOREIGN_PROCESS = ("foreign process", "{foreign_use}",
        f"{_WAIT}request only part of a GPU, such as [vram=8G] or [share=0.5]")
    CLAIMED = "claimed", "{listed_claims}", "wait for the program that claims the GPU to end, or end it"
    CLAIMS_UNKNOWN = (
        "claims unknown", "cannot be claimed, because {detail}", "`doctor` checks the lock folder")
# fmt: on


class GpuObstacle(StoredValue, frozen=True):
    """The obstacle on one GPU. gpu: the index of the GPU.

    job_id               QUARANTINED: the job that held the GPU; RESERVED: the job for which it is kept;
                         FAILED_HERE: the job itself
    reserved_from        RESERVED by queue order: when that job is expected to start, in wall seconds
    overtakes            RESERVED by queue order: how often that job has been overtaken
    pids                 QUARANTINED: the first few of the job's processes that have not ended
    free                 SHARE: share that is left, in thousandths; MEMORY: MiB that a job can still declare
    foreign_mib          memory that foreign processes use, in MiB, if it is part of the obstacle
    foreign_pid          the foreign process that uses the most memory, if the driver lists the processes
    processes_listed     if there is no foreign_pid: whether the driver lists the processes
    foreign_load         FOREIGN_LOAD: load that foreign processes cause, in percent
    foreign_peak_mib     MEMORY: highest memory use of the foreign processes, if above their current use
    claims               MEMORY for `run`: the claims that leave less than is free
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


# fmt: off
class WaitKind(Code):
    """The kind of a wait reason.

    A group of jobs with one resource spec waits for GPUs, or for the storage that every start needs. A single
    job waits for its line of the jobs file, a user, a delay or processes. The kinds from HELD on are not
    stored, because they follow from other columns or because the scheduler has not yet considered the job.
    """

    STORAGE = "storage", "{cause}"
    GPUS_UNREADABLE = "gpus unreadable", "the GPUs cannot be read: {cause}"
    #: The job would start, but another one has just started.
    START_INTERVAL = ("start interval",
        "about to start; there are at least {cause} s between two starts (--start-interval)")
    NO_FREE_GPU = "no free gpu", "{needs}, {gpus} free{others}"
    TOO_FEW_GPUS = "too few gpus", "infeasible: {needs}, but {only}"
    GPUS_TOO_SMALL = ("gpus too small", "infeasible: {needs}, but {largest} {size}, of which {most} can be"
        " allocated to jobs (margin {margin})")
    #: As many jobs of the group run as may run at the same time.
    GROUP_FULL = "group full", "{running} of {max_running} jobs of group {cause} are running"
    #: As many jobs without a GPU run as may run at the same time (`--cpu-jobs`).
    CPU_JOBS_FULL = "cpu jobs full", "{running} of {max_running} jobs without a GPU are running"
    LINE_MALFORMED = ("line malformed",
        "line {line_number} of {file} is malformed; the job waits until it is corrected")
    LINE_REMOVED = ("line removed",
        "line removed from {file}; the job is cancelled{when} unless the line is restored")
    LINE_CHANGED = "line changed", "line {line_number} of {file} was changed; {effect}"
    #: The job comes from a Redis queue.
    NOT_CONFIRMED = "not confirmed", "the Redis queue has not confirmed {source} yet"
    HELD = "held"
    #: GPUs are reserved for the job, and jobs are preempted for it.
    PREEMPTING = "preempting", "{preempting}"
    #: GPUs are reserved for the job, because it has been overtaken too often.
    RESERVED = "reserved", "{reservation}, because it has been overtaken {times}{free}"
    #: The job waits for other jobs, which its view names.
    PARENTS = "parents", ""
    #: The stored reason of the job says so.
    RETRY_DELAY = "retry delay", ""
    PROCESSES_LEFT = "processes left", "waiting for processes of its last attempt to end"
    SHORTAGE = ("shortage", "not started yet, because the machine is short of processes, memory, file"
        " descriptors or disk space; the scheduler keeps trying")
    RELAUNCHED = "relaunched", "launched {launches} times but not started yet"
    REQUEST = "request", "{command} requested; waiting for the scheduler"
    #: The job is a running process.
    NOT_WATCHED = "not watched", "process {cause} is not watched yet"
    NOT_TRIED = "not tried", "not examined yet"
    NO_SCHEDULER = "no scheduler", "no scheduler is running"
    #: A reason that only another version defines; `cause` is its stored text.
    UNKNOWN = "unknown", "{cause}"
# fmt: on


class WaitReason(StoredValue, frozen=True):
    """One reason, with the data that the sentence of its kind names.

    cause          the problem, request, pid, group or interval that the sentence names; HELD: "user", "line"
                   or the outcome of the attempt that ended
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
    victims        PREEMPTING: the jobs that are preempted and have not left their GPUs yet
    reserved       RESERVED: the indices of the GPUs
    reserved_from  RESERVED: when the job is expected to start, in seconds since 1970
    overtakes      RESERVED: how often the job had been overtaken
    running        number of jobs that run, or for which GPUs are reserved; max_running: how many may run
    launches       number of launches of an attempt that no runner has claimed yet
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
