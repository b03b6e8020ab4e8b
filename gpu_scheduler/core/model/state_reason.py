"""Defines the reason why a job or an attempt is in its state, such as why it ended.

A reason is determined once and stored as JSON. Only `views.job_text` turns it into words. Texts within a
reason come from the user, a program or the runner, and no decision depends on them.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.stored_value import StoredValue


class ReasonKind(str, Enum):
    """The cause of the state of a job or attempt."""

    COMMAND_FAILED = "command_failed"
    LAUNCH_FAILED = "launch_failed"
    RUNNER_NEVER_STARTED = "runner_never_started"
    #: Another program claimed a GPU of the attempt before its runner did.
    GPU_CLAIMED = "gpu_claimed"
    #: The attempt was stopped or completed, and its runner reported a problem.
    RUNNER_REPORT = "runner_report"
    #: The command completed, but its pipe was closed early or it left processes.
    COMPLETED = "completed"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    RUNNER_DIED = "runner_died"
    FOLDER_REMOVED = "folder_removed"
    MACHINE_ENDED = "machine_ended"
    MACHINE_RESTARTED = "machine_restarted"
    #: The attempt had not begun when the store was lost.
    STORE_LOST = "store_lost"
    SUPERSEDED = "superseded"
    CANCELLED_BY_USER = "cancelled_by_user"
    CANCELLED_BY_LINE = "cancelled_by_line"
    #: The job never started here, and another machine may run its item of a Redis queue.
    GIVEN_BACK = "given_back"
    LINE_REMOVED = "line_removed"
    LINE_ADDED_AGAIN = "line_added_again"
    HELD_BY_USER = "held_by_user"
    HELD_BY_LINE = "held_by_line"
    #: A job that `import` read waits for one that neither completed nor was imported; `subject` names it.
    PARENT_NOT_IMPORTED = "parent_not_imported"
    RELEASED_BY_USER = "released_by_user"
    RELEASED_BY_LINE = "released_by_line"
    RETRIED_BY_USER = "retried_by_user"
    #: The user resumed the job from the checkpoint in `subject`.
    RESUMED_BY_USER = "resumed_by_user"
    #: An interrupted job was queued again, by the user or by the scheduler itself (`next_steps`).
    RECOVERED = "recovered"
    #: The job was skipped, because a parent did not complete.
    PARENT_FAILED = "parent_failed"
    #: The job was queued again, because no parent that did not complete is left.
    PARENT_RETRIED = "parent_retried"
    #: A reason that only another version defines; `message` is its stored text.
    UNKNOWN = "unknown"


class FailureKind(str, Enum):
    """The cause of a failed command or launch, as far as it is known. The remedy depends on it.

    If several kinds fit a command that ran, the one that comes first in this list counts.
    """

    CUDA_OOM = "cuda_oom"
    MISREAD_GPU_IDS = "misread_gpu_ids"
    CUDA_FORKED = "cuda_forked"
    GPU_ECC = "gpu_ecc"
    GPU_BUSY = "gpu_busy"
    #: The NVSwitches that connect the GPUs are not ready.
    FABRIC_NOT_READY = "fabric_not_ready"
    #: The GPU itself reports an error, or cannot be used at all.
    DEVICE_ERROR = "device_error"
    INVALID_GPU_NUMBER = "invalid_gpu_number"
    NO_KERNEL_IMAGE = "no_kernel_image"
    #: Code of the program accessed memory outside its data on the GPU, or an assertion in it failed.
    KERNEL_FAULT = "kernel_fault"
    CUDA_OPTION_UNKNOWN = "cuda_option_unknown"
    GPU_USED_TWICE = "gpu_used_twice"
    HOST_OOM = "host_oom"
    #: A script with the line ends of Windows.
    CRLF = "crlf"
    CONDA_NOT_INITIALISED = "conda_not_initialised"
    MODULE_MISSING = "module_missing"
    ADDRESS_IN_USE = "address_in_use"
    TOO_MANY_FILES = "too_many_files"
    SHARED_MEMORY = "shared_memory"
    NOT_LOGGED_IN = "not_logged_in"
    END_OF_INPUT = "end_of_input"
    COMMAND_NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "not_executable"
    DISK_FULL = "disk_full"
    FILE_MISSING = "file_missing"
    PERMISSION = "permission"
    NO_GPU_VISIBLE = "no_gpu_visible"
    GPU_DRIVER = "gpu_driver"
    #: The program rejected its arguments.
    WRONG_USAGE = "wrong_usage"
    #: A wrong call of the program, or an error in its own code.
    PROGRAM = "program"
    CRASHED = "crashed"
    KILLED = "killed"
    TERMINATED = "terminated"
    BACKGROUND_WORK = "background_work"
    BROKEN_PIPE = "broken_pipe"
    GREP_IN_PIPE = "grep_in_pipe"
    # Codes that command.sh or the runner reports when a launch fails.
    GPU_CLAIM = "gpu_claim"
    SCRIPT_MISSING = "script_missing"
    CONDA_MISSING = "conda_missing"
    ENVIRONMENT_MISSING = "environment_missing"
    ENVIRONMENT_BROKEN = "environment_broken"
    PYTHON_MISSING = "python_missing"
    TORCHRUN_MISSING = "torchrun_missing"
    CWD_UNREACHABLE = "cwd_unreachable"
    CUDA_OPTION_UNPLACED = "cuda_option_unplaced"


#: The kinds of failures that a GPU reports about itself.
DEVICE_FAILURES = (FailureKind.GPU_ECC, FailureKind.GPU_BUSY, FailureKind.DEVICE_ERROR)


class NextKind(str, Enum):
    """A job's next step after an attempt, or the reason why an allowed retry does not take place."""

    OOM_RETRY = "oom_retry"
    OOM_RETRIES_USED_UP = "oom_retries_used_up"
    NO_LARGER_GPU = "no_larger_gpu"
    RETRY = "retry"
    LAUNCH_RETRY = "launch_retry"
    LAUNCH_RETRY_UNCOUNTED = "launch_retry_uncounted"
    LAUNCH_ABANDONED = "launch_abandoned"
    HELD = "held"
    #: Another runner watches the adopted process.
    WATCHED_AGAIN = "watched_again"
    #: The scheduler itself queues an interrupted job again.
    RECOVERY = "recovery"
    RECOVERIES_USED_UP = "recoveries_used_up"
    #: The job starts again with a checkpoint.
    RESUME = "resume"
    #: The job starts again from its beginning, because nothing shows that its command accepts a checkpoint.
    START_OVER = "start_over"


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
