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

    carried_out      the request was carried out, or there was nothing to do
    refused          the request was refused
    recorded         the request is recorded for the next scheduler, because none is running
    unanswered       the request is recorded, but the scheduler has not answered yet
    not_ended        the job was to be ended without a scheduler, but it has not ended in time
    in_state_file    the request is in the state file, which the next scheduler reads
    nothing_to_do    the request is already in effect, and no scheduler has run yet
    spared           the job is an adopted process, so a request for all jobs leaves it alone
    """

    CARRIED_OUT = "carried_out"
    REFUSED = "refused"
    RECORDED = "recorded"
    UNANSWERED = "unanswered"
    NOT_ENDED = "not_ended"
    IN_STATE_FILE = "in_state_file"
    NOTHING_TO_DO = "nothing_to_do"
    SPARED = "spared"


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    target: a job id, ALL_JOBS or a GPU index; reply: the answer of a round, or why the request was refused
    before it was recorded; scheduler_pid: set only for `UNANSWERED`. request: the id of a request that is
    still open.
    failed_ancestors: for a refusal with the code PARENT_FAILED, the first jobs that must be retried before
    this one; is_skipped: whether this one was skipped, so that the retry of these jobs also queues it.
    """

    target: int
    kind: AnswerKind
    reply: RequestAnswer | None = None
    scheduler_pid: int | None = None
    failed_ancestors: tuple[int, ...] = ()
    is_skipped: bool = False
    request: int | None = None

    @property
    def has_failed(self) -> bool:
        """True if the request was refused, or the job was not ended."""
        return self.kind in (AnswerKind.REFUSED, AnswerKind.NOT_ENDED)


def unanswered(target: int, scheduler_pid: int | None, request: int) -> Answer:
    """Returns the answer to a request that is recorded but not carried out yet."""
    kind = AnswerKind.RECORDED if scheduler_pid is None else AnswerKind.UNANSWERED
    return Answer(target, kind, scheduler_pid=scheduler_pid, request=request)
