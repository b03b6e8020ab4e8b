"""Values that describe an attempt as observed (docs/design.md, Attempt folder)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpu_scheduler.core.model.state_reason import FailureKind

#: "unlocked": the runner lives, but does not hold the lock of this claim, as in a copy of the folder.
#: "unclaimed": the claim is missing or unusable, and the runner in the store lives.
#: "invalid": the claim is unusable, and the store has no runner.
#: "unknown": the folder could not be read this time; no conclusion is drawn from that.
ClaimState = Literal["none", "void", "live", "unlocked", "unclaimed", "invalid", "dead", "unknown"]
#: The action when an attempt has not ended after its grace period: SIGKILL, or the withdrawal of the stop.
OnTimeout = Literal["kill", "withdraw"]


class RunnerIdentity(NamedTuple):
    """The process that runs an attempt. start_ticks: its start in kernel ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class StopRequest:
    """A request to stop an attempt, the contents of the file `stop`.

    cause: why the attempt must stop; grace_s: seconds from SIGTERM to the action of on_timeout.
    """

    cause: str
    grace_s: float
    on_timeout: OnTimeout = "kill"


@dataclass(frozen=True)
class AttemptResult:
    """The end of an attempt, the contents of the file `result`.

    `cause` is None when the command ended by itself, otherwise "cancelled", "preempted", "timed_out" or
    "machine". Exactly one of exit_code and signal is set once the command was spawned. oom_kills: number of
    processes that the kernel killed meanwhile because memory ran out, None = unknown. shortage: errno of the
    shortage of processes, memory or open files that kept the command from starting. failure: the kind of
    failure that command.sh or the runner reported with `message`.
    """

    cause: str | None
    exit_code: int | None
    signal: int | None
    began: bool
    message: str | None
    survivors: tuple[int, ...]
    started_at: float | None
    ended_at: float
    oom_kills: int | None = None
    shortage: int | None = None
    failure: FailureKind | None = None


@dataclass(frozen=True)
class FailureContext:
    """The context of a failed command, from which its failure is explained.

    log_tail: the end of its log. cuda_ids: the GPU ids that `--cuda` passed to it, if they differ from the
    numbers (0, 1 …) of its visible GPUs; otherwise empty. oom_retries, fail_retries: as set by its line, None
    = not set.
    """

    log_tail: str = ""
    cuda_ids: tuple[int, ...] = ()
    oom_retries: int | None = None
    fail_retries: int | None = None


@dataclass(frozen=True)
class AttemptStatus:
    """The status of an attempt at one moment.

    anomalies: unexpected contents of its folder, as phrases. window_open: whether the Screen window of a live
    runner still exists, for display only; None = it has none, or unknown. runner: the process that holds the
    claim. damage: the defect in the files that record the end, such as "the file claim was removed".

    For an attempt without a claim: folder_complete: its folder has everything that a runner needs;
    command_began: its command has registered itself there.
    """

    claim: ClaimState = "none"
    pid: int | None = None
    session: str | None = None
    stop: StopRequest | None = None
    result: AttemptResult | None = None
    log: str | None = None
    anomalies: tuple[str, ...] = ()
    window_open: bool | None = None
    runner: RunnerIdentity | None = None
    damage: str | None = None
    folder_exists: bool = True
    folder_complete: bool = True
    command_began: bool = False

    @property
    def is_over(self) -> bool:
        """True if its runner has published a result or is gone, as far as the folder shows."""
        return self.result is not None or self.claim in ("dead", "void")
