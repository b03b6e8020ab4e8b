"""Defines the answers to the requests that front ends make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.model.request_answer import RequestAnswer

#: The requester recorded in the store, unless a front end gives its own name.
COMMAND_LINE = "cli"
#: The source that is recorded in the jobs of `submit`.
SUBMIT = "submit"
#: The source that is recorded in the jobs of `adopt`.
ADOPT = "adopt"
#: The target of an answer that concerns all jobs of a request, instead of one job.
ALL_JOBS = 0


class AnswerKind(str, Enum):
    """The progress of a request.

    carried_out      the scheduler carried out the request, or found nothing to do
    refused          the scheduler refused the request, or the command refused it before recording it
    recorded         the request is recorded, but no scheduler is running
    unanswered       the request is recorded, but the scheduler has not answered yet
    stopped          the command itself ended the job, because no scheduler is running
    in_state_file    the request is in the state file, which the next scheduler reads
    nothing_to_do    the request is already in effect, and no scheduler has run yet
    spared           the job is an adopted process, so a request for all jobs leaves it alone
    """

    CARRIED_OUT = "carried_out"
    REFUSED = "refused"
    RECORDED = "recorded"
    UNANSWERED = "unanswered"
    STOPPED = "stopped"
    IN_STATE_FILE = "in_state_file"
    NOTHING_TO_DO = "nothing_to_do"
    SPARED = "spared"


class StopResult(str, Enum):
    """The result of ending a job without a scheduler.

    cancelled          the job was cancelled
    runner_had_died    the job was cancelled, but its runner had already died
    never_began        the job was cancelled before its command began
    had_ended          the job had already ended by itself
    processes_left     some processes of the job are still running
    runner_unlocked    the job's runner is alive but has no lock on the claim
    runs_elsewhere     the job's processes are not on this machine; only a scheduler can end the job
    not_watched        no runner watches the adopted process now; the next scheduler ends it
    """

    CANCELLED = "cancelled"
    RUNNER_HAD_DIED = "runner_had_died"
    NEVER_BEGAN = "never_began"
    HAD_ENDED = "had_ended"
    PROCESSES_LEFT = "processes_left"
    RUNNER_UNLOCKED = "runner_unlocked"
    RUNS_ELSEWHERE = "runs_elsewhere"
    NOT_WATCHED = "not_watched"

    @property
    def has_ended(self) -> bool:
        """True if the job has ended."""
        return self not in (
            StopResult.PROCESSES_LEFT, StopResult.RUNNER_UNLOCKED, StopResult.RUNS_ELSEWHERE,
            StopResult.NOT_WATCHED,
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    target: a job id, ALL_JOBS or a GPU index; reply: the scheduler's answer, or why the request was refused
    before it was recorded; stop_result: set only for `STOPPED`; scheduler_pid: set only for `UNANSWERED`.
    request: the id of a request that is still open.
    failed_ancestors: for a refusal with the code PARENT_FAILED, the first jobs that must be retried before
    this one; is_skipped: whether this one was skipped, so that the retry of these jobs also queues it.
    """

    target: int
    kind: AnswerKind
    reply: RequestAnswer | None = None
    stop_result: StopResult | None = None
    scheduler_pid: int | None = None
    failed_ancestors: tuple[int, ...] = ()
    is_skipped: bool = False
    request: int | None = None

    @property
    def has_failed(self) -> bool:
        """True if the request was refused, or the job could not be ended."""
        failed_to_stop = self.stop_result is not None and not self.stop_result.has_ended
        return self.kind is AnswerKind.REFUSED or failed_to_stop


def unanswered(target: int, scheduler_pid: int | None, request: int) -> Answer:
    """Returns the answer to a request that is recorded but not carried out yet."""
    kind = AnswerKind.RECORDED if scheduler_pid is None else AnswerKind.UNANSWERED
    return Answer(target, kind, scheduler_pid=scheduler_pid, request=request)
