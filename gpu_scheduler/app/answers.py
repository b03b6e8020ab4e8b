"""Defines the answers to requests of front ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.model.request_answer import RequestAnswer

#: The requester recorded in the store, unless a front end gives its own name.
COMMAND_LINE = "cli"


class AnswerKind(str, Enum):
    """The progress of a request."""

    CARRIED_OUT = "carried out by the scheduler"
    REFUSED = "refused"
    RECORDED = "recorded; no scheduler is running"
    UNANSWERED = "recorded; the scheduler has not answered yet"
    STOPPED = "carried out without a scheduler"
    IN_STATE_FILE = "written to the state file, which the first scheduler reads"
    NOTHING_TO_DO = "already in effect; no scheduler has run yet"


class StopResult(str, Enum):
    """The result of ending a job without a scheduler."""

    CANCELLED = "cancelled"
    RUNNER_HAD_DIED = "cancelled; its runner had already died"
    NEVER_BEGAN = "cancelled before it began"
    HAD_ENDED = "had already ended by itself"
    PROCESSES_LEFT = "some of its processes are left"
    RUNNER_UNLOCKED = "its runner is alive but does not hold the claim"
    RUNS_ELSEWHERE = "only a scheduler can end it, through its executor"

    @property
    def has_ended(self) -> bool:
        """True if the job has ended."""
        return self not in (
            StopResult.PROCESSES_LEFT, StopResult.RUNNER_UNLOCKED, StopResult.RUNS_ELSEWHERE,
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The answer to one request. target: job id or GPU index.

    reply: the scheduler's answer, or why the request was refused before it was recorded; stop_result: for
    `STOPPED`; scheduler_pid: for `UNANSWERED`.
    """

    target: int
    kind: AnswerKind
    reply: RequestAnswer | None = None
    stop_result: StopResult | None = None
    scheduler_pid: int | None = None

    @property
    def has_failed(self) -> bool:
        """True if the request was refused, or the job could not be ended."""
        failed_to_stop = self.stop_result is not None and not self.stop_result.has_ended
        return self.kind is AnswerKind.REFUSED or failed_to_stop


def unanswered(target: int, scheduler_pid: int | None) -> Answer:
    """Returns the answer to a request that is recorded but not carried out yet."""
    kind = AnswerKind.RECORDED if scheduler_pid is None else AnswerKind.UNANSWERED
    return Answer(target, kind, scheduler_pid=scheduler_pid)
