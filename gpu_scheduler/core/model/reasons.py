"""Defines the reasons why a job waits, and why a job or an attempt is in its state, such as why it ended.

Each code is a row with its sentence and its remedy. A reason is determined once and stored as JSON. Texts
within a reason come from the user, a program or the runner, and no decision depends on them.
"""

from __future__ import annotations

from typing import Literal

from gpu_scheduler.core.model.gpu import GpuClaim, GpuFault, Suspicion
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Code, StoredValue


# fmt: off
class ReasonKind(Code):
    """The cause of the state of a job or attempt."""

    #: How it ended is in `exit_code`, `signal` or `failure`.
    COMMAND_FAILED = "command_failed", "{exit}"
    LAUNCH_FAILED = "launch_failed", "{launch_error}"
    RUNNER_NEVER_STARTED = "runner_never_started", "its runner did not start in {launches} launches"
    #: Another program claimed a GPU of the attempt before its runner did.
    GPU_CLAIMED = "gpu_claimed", "{claimed_gpu} was claimed by {program} first"
    #: The attempt was stopped or completed, and its runner reported a problem.
    RUNNER_REPORT = "runner_report", "{report}"
    #: The command completed, but its pipe was closed early or it left processes.
    COMPLETED = "completed", "{remains}"
    PREEMPTED = "preempted", "preempted{for_job}"
    INTERRUPTED = "interrupted"
    RUNNER_DIED = "runner_died", "its runner {death}"
    FOLDER_REMOVED = "folder_removed", "its folder was removed"
    MACHINE_ENDED = "machine_ended", "the machine was shut down or its login session ended"
    MACHINE_RESTARTED = "machine_restarted", "the machine was restarted"
    STORE_LOST = "store_lost", "it had not begun when the store was lost"
    SUPERSEDED = "superseded", "another attempt followed"
    CANCELLED_BY_USER = "cancelled_by_user", "cancelled by the user"
    CANCELLED_BY_LINE = "cancelled_by_line", "cancelled by its line"
    #: The job never started here, and another machine may run its item of a Redis queue.
    GIVEN_BACK = "given_back", "given back to the Redis queue"
    LINE_REMOVED = "line_removed", "line removed"
    LINE_ADDED_AGAIN = "line_added_again", "added to {subject} again"
    HELD_BY_USER = "held_by_user", "held by the user"
    HELD_BY_LINE = "held_by_line", "held by its line"
    PARENT_NOT_IMPORTED = (
        "parent_not_imported", "held by `import`, because {subject} in the file did not complete")
    RELEASED_BY_USER = "released_by_user", "released"
    RELEASED_BY_LINE = "released_by_line", "its line no longer holds it"
    RETRIED_BY_USER = "retried_by_user", "retried"
    RESUMED_BY_USER = "resumed_by_user", "resumed from {subject}"
    #: An interrupted job was queued again, by the user or by the scheduler itself (`next_steps`).
    RECOVERED = "recovered"
    #: The job was skipped, because a parent did not complete.
    PARENT_FAILED = "parent_failed", "{parent_end}"
    #: The job was queued again, because no parent that did not complete is left.
    PARENT_RETRIED = "parent_retried", "it no longer waits for a failed job"
    #: A reason that only another version defines; `message` is its stored text.
    UNKNOWN = "unknown", "{report}"


_PIPEFAIL_OFF = "{pipefail=off} if only the last program of the pipe matters"
_CORRECT_LINE = "correct the line (this creates a new job), or create the script or environment that it names"


class FailureKind(Code):
    """The cause of a failed command or launch, as far as it is known.

    If several kinds fit a command that ran, the one that comes first in this list counts. The sentence is ""
    if the exit code or the error says enough. Remedies contain attributes of jobs: {gpus=2} as an
    instruction, <gpus=2> as an example (`show.why_text`).
    """

    CUDA_OOM = "cuda_oom", ""
    MISREAD_GPU_IDS = "misread_gpu_ids", ""
    CUDA_FORKED = "cuda_forked", "", 'use the start method "spawn" of multiprocessing'
    GPU_ECC = ("gpu_ecc", "",
        "the memory of the GPU is defective (uncorrectable ECC error, see `nvidia-smi -q -d ECC`): reset the"
        " GPU (`sudo nvidia-smi --gpu-reset -i N`) or restart the machine; `pause N` keeps jobs off it")
    GPU_BUSY = ("gpu_busy", "",
        "the GPU is busy or unavailable: its compute mode may let only one process use it (`nvidia-smi -q -d"
        " COMPUTE`; `sudo nvidia-smi -i N -c 0` changes it), or it needs a reset")
    FABRIC_NOT_READY = ("fabric_not_ready", "",
        "the links between the GPUs are not ready (CUDA error 802): start the Fabric Manager (`sudo"
        " systemctl restart nvidia-fabricmanager`), whose version must be that of the driver")
    #: The GPU itself reports an error, or cannot be used at all.
    DEVICE_ERROR = "device_error", "", "check the GPU with `nvidia-smi -q` and `dmesg`; it may need a reset"
    INVALID_GPU_NUMBER = ("invalid_gpu_number", "",
        "the program uses a GPU number that the job does not have: the job's GPUs are always numbered from"
        " 0, so use cuda:0, or request more GPUs, as in <gpus=2>")
    NO_KERNEL_IMAGE = ("no_kernel_image", "",
        "the program has no kernel image for this kind of GPU: install a build of the library (such as"
        " PyTorch) that supports it, or keep the job on other GPUs, as in <allowed=0>")
    KERNEL_FAULT = ("kernel_fault", "",
        "code on the GPU used memory outside its data, often because of an index or a label that is too"
        " large; CUDA reports this late, so the traceback may show a later place:"
        " <env:CUDA_LAUNCH_BLOCKING=1> makes it show the right one")
    CUDA_OPTION_UNKNOWN = ("cuda_option_unknown", "",
        "{cuda=off}, because the script does not accept --cuda; the job's first GPU is number 0 even without"
        " --cuda")
    GPU_USED_TWICE = ("gpu_used_twice", "",
        "two processes of the job use the same GPU: request one GPU for each process, as in <gpus=2>, or"
        " start fewer processes")
    HOST_OOM = ("host_oom", "",
        "host memory ran out: use fewer workers, smaller batches, or fewer jobs at once")
    CRLF = ("crlf", "",
        "the script has Windows line ends (CRLF): convert it with `sed -i 's/\\r$//' SCRIPT`")
    CONDA_NOT_INITIALISED = ("conda_not_initialised", "",
        "`conda activate` needs conda to be initialised in the job's shell: leave it out and give the job"
        ' its environment (conda=NAME), or write `eval "$(conda shell.bash hook)"` before it')
    MODULE_MISSING = ("module_missing", "",
        "install the module in the job's environment, or name the right environment (conda=NAME or"
        " venv=PATH)")
    ADDRESS_IN_USE = ("address_in_use", "",
        "another process uses the address (port): give the program the port that the scheduler keeps free"
        ' for the job, such as `--master_port "$MASTER_PORT"`')
    TOO_MANY_FILES = ("too_many_files", "",
        "the limit on open files is too low: write `ulimit -n 65536 &&` before the command, or use fewer"
        " workers")
    SHARED_MEMORY = ("shared_memory", "",
        "/dev/shm is full or too small: use fewer workers, remove old files from it, or enlarge it (in a"
        " container with --shm-size or --ipc=host)")
    NOT_LOGGED_IN = ("not_logged_in", "",
        "the program is not logged in to a service: log in once in your own shell (`wandb login`, `hf auth"
        " login`), or set its key in the job's environment (WANDB_API_KEY, HF_TOKEN, COMET_API_KEY); access"
        " to a gated model is requested on its page")
    END_OF_INPUT = ("end_of_input", "",
        "the program asked for input, but the standard input of a job is empty: pass the answer as an option"
        " or through a pipe, as in `echo y | …`")
    COMMAND_NOT_FOUND = ("command_not_found", "",
        "check the spelling, and that the job's environment contains the program (conda=NAME or venv=PATH)")
    NOT_EXECUTABLE = ("not_executable", "",
        "make the file executable (chmod +x), or run it with its interpreter")
    DISK_FULL = "disk_full", "", "free some space on the disk to which the job writes"
    FILE_MISSING = ("file_missing", "",
        "relative paths are looked up in the job's working folder: use absolute paths, or set [cwd=DIR]")
    PERMISSION = "permission", "", "check the owner and permissions of the path in the message"
    NO_GPU_VISIBLE = ("no_gpu_visible", "",
        "the program sees no CUDA GPU: do not set CUDA_VISIBLE_DEVICES in the command or the script, use a"
        " build of the library with CUDA, and check the driver with `doctor`")
    GPU_DRIVER = "gpu_driver", "", "check the driver with `doctor`"
    #: The program rejected its arguments.
    WRONG_USAGE = "wrong_usage", "", "correct the arguments on its line, which adds a new job"
    #: A wrong call of the program, or an error in its own code.
    PROGRAM = "program", ""
    CRASHED = "crashed", "", "native code crashed, often because of incompatible libraries"
    KILLED = ("killed", "",
        "something other than the scheduler killed it: `journalctl -k | grep -i oom` shows whether the"
        " kernel killed it because host memory ran out")
    TERMINATED = "terminated", "", "something other than the scheduler terminated it"
    BACKGROUND_WORK = ("background_work", "its work was still running in the background",
        "add `wait` at the end of the script, or {background=wait}, with which the job lasts as long as its"
        " processes; {background=ignore} if these do not matter")
    BROKEN_PIPE = (
        "broken_pipe", "a program wrote to a pipe whose reader had read enough", _PIPEFAIL_OFF)
    GREP_IN_PIPE = (
        "grep_in_pipe", "`grep` found no line, or another program in the pipe failed", _PIPEFAIL_OFF)
    # Codes that command.sh or the runner reports when a launch fails.
    GPU_CLAIM = "gpu_claim", ""
    SCRIPT_MISSING = "script_missing", "", _CORRECT_LINE
    CONDA_MISSING = "conda_missing", "", _CORRECT_LINE
    ENVIRONMENT_MISSING = "environment_missing", "", _CORRECT_LINE
    ENVIRONMENT_BROKEN = "environment_broken", ""
    PYTHON_MISSING = "python_missing", ""
    TORCHRUN_MISSING = "torchrun_missing", ""
    CWD_UNREACHABLE = "cwd_unreachable", ""
    CUDA_OPTION_UNPLACED = "cuda_option_unplaced", ""


class NextKind(Code):
    """A job's next step after an attempt, or the reason why an allowed retry does not take place."""

    OOM_RETRY = "oom_retry", "OOM retry {number} of {of}{with_memory}"
    OOM_RETRIES_USED_UP = "oom_retries_used_up", "OOM retries used up ({of})"
    NO_LARGER_GPU = "no_larger_gpu", "no larger GPU: it already had {memory}, which is the maximum"
    RETRY = "retry", "retry {number} of {of} in {wait_s:g} s"
    LAUNCH_RETRY = "launch_retry", "try {number} of {of} in {wait_s:g} s"
    LAUNCH_RETRY_UNCOUNTED = "launch_retry_uncounted", "next try in {wait_s:g} s, not counted as a failure"
    #: The text of the cause says so.
    LAUNCH_ABANDONED = "launch_abandoned", ""
    HELD = "held", "{continuation}"
    WATCHED_AGAIN = "watched_again", "another runner watches the adopted process in {wait_s:g} s"
    #: The scheduler itself queues an interrupted job again.
    RECOVERY = "recovery", "recovery {number} of {of}"
    RECOVERIES_USED_UP = (
        "recoveries_used_up", "recovered {of} times already; `recover {job_id}` runs it again")
    #: The job starts again with a checkpoint.
    RESUME = "resume", "resumes from {origin}"
    #: Nothing shows that its command accepts a checkpoint.
    START_OVER = ("start_over",
        "starts from its beginning, because it has no resume-flag (newest checkpoint: {origin})")
# fmt: on


#: The kinds of failures that a GPU reports about itself.
DEVICE_FAILURES = (FailureKind.GPU_ECC, FailureKind.GPU_BUSY, FailureKind.DEVICE_ERROR)


class NextStep(StoredValue, frozen=True):
    """One step that follows an attempt.

    number, of: the retry's number and the number of allowed retries; wait_s: seconds until the retry;
    vram_mib: memory per GPU that the retry requests, or that the attempt already had; job_id: the held job.
    checkpoint, step: the path and step of the newest checkpoint of the job; None if there is none or if the
    step is unknown.
    """

    kind: NextKind
    number: int | None = None
    of: int | None = None
    wait_s: float | None = None
    vram_mib: int | None = None
    job_id: int | None = None
    checkpoint: str | None = None
    step: float | None = None

    @property
    def is_retry(self) -> bool:
        """True if the job is queued again after its command began and failed."""
        return self.kind in (NextKind.OOM_RETRY, NextKind.RETRY)


class StateReason(StoredValue, frozen=True):
    """The reason why a job or an attempt is in its state.

    failure: the cause of a failed command or launch; None if unknown. exit_code, signal: how the command
    ended. error: the line of the command's log that names the error. message: a report from command.sh, the
    runner or the executor. oom_kill: whether the kernel killed the "command" or a "child" of it because host
    memory ran out. gpu_ids: the GPU ids that the command received through `--cuda` and misread.
    gpu_used_twice: whether NCCL found two processes of the command on one GPU. launches: how many times a
    runner was started without success. gpu, pid: the index of the GPU that another program claimed first, and
    one pid of that program; None if unknown. subject: the file or jobs that the reason is about. parent,
    parent_outcome: the parent that did not complete, and its outcome. preemptor: the job for which the
    attempt was preempted; None if the user asked. survivors: pids of processes that are still running. left,
    left_count: the command lines of the first processes that the command left behind, and their number.
    next_steps: what follows.
    """

    kind: ReasonKind
    failure: FailureKind | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    message: str | None = None
    oom_kill: Literal["command", "child"] | None = None
    gpu_ids: tuple[int, ...] = ()
    gpu_used_twice: bool = False
    launches: int | None = None
    gpu: int | None = None
    pid: int | None = None
    subject: str | None = None
    parent: int | None = None
    parent_outcome: Outcome | None = None
    preemptor: int | None = None
    survivors: tuple[int, ...] = ()
    left: tuple[str, ...] = ()
    left_count: int | None = None
    next_steps: tuple[NextStep, ...] = ()

    @classmethod
    def unknown(cls, text: str) -> StateReason:
        """Returns the reason that another version stored as this text."""
        return StateReason(ReasonKind.UNKNOWN, message=text)


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
    #: The job runs on an engine, of which the scheduler knows nothing.
    NO_ENGINE = ("no engine", "runs on {engine}, which this scheduler does not use; start it with --{cause}")
    #: Its agent, a companion of the scheduler, does not work.
    ENGINE_SILENT = ("engine silent",
        "waits for the agent for {engine} (engine-agent); if that does not work, gpu_scheduler.log says why")
    ENGINE_UNUSABLE = "engine unusable", "{cause}"
    #: The engine can never run the job.
    ENGINE_REFUSES = "engine refuses", "infeasible: {cause}"
    #: Whether the engine can run the job is not known yet.
    ENGINE_ASKED = "engine asked", "asking {engine} whether it can run the job"
    ENGINE_FULL = "engine full", "{waiting} in {engine} already (--{cause}-limit)"
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
    #: An engine has the job, or will get it.
    IN_ENGINE = "in engine", "waits in {cause}"
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
        return self.kind in (WaitKind.TOO_FEW_GPUS, WaitKind.GPUS_TOO_SMALL, WaitKind.ENGINE_REFUSES)

    @classmethod
    def unknown(cls, text: str) -> WaitReason:
        """Returns the reason that another version stored as this text."""
        return WaitReason(WaitKind.UNKNOWN, text)
