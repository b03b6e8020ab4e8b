"""Has the requests of a front end carried out, and defines the answers to them.

The scheduler carries them out or, if none is running, rounds of this process. Only rounds change jobs. A
server does not run rounds; the next `start` carries out what it has recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import ANSWER_TIMEOUT_S, POLL_INTERVAL_S, open_store
from gpu_scheduler.core.model.request import RequestAnswer
from gpu_scheduler.core.model.values import Code
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.requests import request_answer
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.rounds.command import CommandRounds

#: The requester recorded in the store, unless a front end gives its own name.
COMMAND_LINE = "cli"
#: The target of an answer that concerns all jobs of a request, instead of one job.
ALL_JOBS = 0


# fmt: off
class AnswerKind(Code):
    """The progress of a request. Without a sentence, the answer of a round says more."""

    #: The request was carried out, or there was nothing to do.
    CARRIED_OUT = "carried_out", ""
    REFUSED = "refused", ""
    #: No scheduler is running.
    RECORDED = "recorded", "recorded; takes effect when the scheduler starts"
    UNANSWERED = "unanswered", "recorded; the scheduler ({scheduler}) has not answered yet"
    #: The job was to be ended without a scheduler, but it has not ended in time.
    NOT_ENDED = "not_ended", "not ended yet; the next `start` ends it", "see `why {target}`"
    #: The request is in the state file, which the next scheduler reads.
    IN_STATE_FILE = "in_state_file", ""
    #: The request is already in effect, and no scheduler has run yet.
    NOTHING_TO_DO = "nothing_to_do", ""
    #: A request for all jobs leaves an adopted process alone.
    SPARED = "spared", "continues, because it was adopted", "`cancel {target}` ends it"
# fmt: on


class Answer(Struct, frozen=True):
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


#: Seconds until a preempted or cancelled job gets SIGKILL, unless the caller chooses.
GRACE_S = 10.0
#: Seconds that a runner and a sweep may need after the grace to end a job (docs/design.md, Reconciling).
STOP_MARGIN_S = 10.0


@contextmanager
def control(location: Location) -> Iterator[Control]:
    """Opens the store for changes. If no scheduler is running, first records what has ended meanwhile.

    Raises StoreNotFoundError if there is no store, and SchedulerError if the store cannot be used.
    """
    with open_store(location) as store:
        taken = Control(store, may_run=location.runs_rounds)
        try:
            taken.catch_up()
            yield taken
        finally:
            taken.close()


class Control:
    """A store whose jobs and GPUs a front end changes.

    may_run: whether it may run rounds itself, as far as that is known before the first one; runs_rounds:
    whether this process, and no scheduler or other command, ran the last rounds.
    """

    def __init__(self, store: Store, *, may_run: bool) -> None:
        self.store = store
        self.runs_rounds = False
        self.may_run = may_run
        self._ending: Collection[int] = ()
        self._rounds: CommandRounds | None = None

    @property
    def scheduler_pid(self) -> int | None:
        """The pid of the running scheduler; None if no scheduler is running."""
        return scheduler_pid(self.store.data_dir.lock)

    def is_ending(self, job_id: int) -> bool:
        """Returns whether an attempt of the job still has processes, according to the last round."""
        return any(one.job_id == job_id and one.state.holds_gpus for one in self.store.active_attempts())

    def catch_up(self) -> None:
        """Runs rounds until nothing changes, unless a scheduler or another command runs them."""
        self.runs_rounds = False
        if not self.may_run or self.scheduler_pid is not None:
            return
        # The rounds take longer to import than most commands take.
        from gpu_scheduler.rounds.command import CommandRounds, may_run_rounds

        with _described(self.store):
            if self._rounds is None:
                self.may_run = may_run_rounds(self.store)
                self._rounds = CommandRounds(self.store) if self.may_run else None
            if self._rounds is not None:
                self._rounds.named = self._ending
                self.runs_rounds = self._rounds.advance()

    def carry_out(
        self, requests: Collection[int], ending: Collection[int] = (), grace_s: float = GRACE_S
    ) -> dict[int, RequestAnswer | None]:
        """Waits until these requests are answered; returns the answers, None for an open request.

        ending: the jobs that the requests end. If no scheduler is running, also waits until their processes
        and those for whose end a request waits have ended, which takes at most `grace_s` and a margin.
        """
        answers: dict[int, RequestAnswer | None] = dict.fromkeys(requests)
        answered_by = time.monotonic() + ANSWER_TIMEOUT_S

        def is_done() -> bool:
            # After the last poll, the scheduler can no longer answer in time.
            is_late, pid = time.monotonic() >= answered_by, self.scheduler_pid
            for request in [one for one, answer in answers.items() if answer is None]:
                answers[request] = request_answer(self.store, request)
            if self.runs_rounds and self._rounds is not None:
                # What these rounds have not answered then, only a scheduler can answer.
                is_stuck = is_late and self._rounds.problem is not None
                return is_stuck or not self._rounds.ending_jobs()
            is_answered = None not in answers.values()
            if pid is not None or (is_late and not ending):
                return is_late or is_answered
            # Another command runs rounds, which also carry out the requests of this one.
            return is_answered and not any(map(self.is_ending, ending))

        self.wait(is_done, max(grace_s, GRACE_S) + STOP_MARGIN_S, ending)
        problem = self._rounds.problem if self._rounds is not None else None
        if problem is not None and any(map(self.is_ending, ending)):
            with _described(self.store):
                raise problem
        return answers

    def wait(self, is_done: Callable[[], bool], limit_s: float, ending: Collection[int]) -> None:
        """Wakes the scheduler, or runs rounds, until `is_done` returns true or the time is up.

        ending: the jobs that the rounds end. Returns at once if nobody carries out requests before the next
        `start`.
        """
        self._ending = ending
        self.store.data_dir.ring_doorbell()
        end = time.monotonic() + limit_s
        while True:
            began = time.monotonic()
            self.catch_up()
            took_s = time.monotonic() - began
            is_last = began >= end or not (self.may_run or self.scheduler_pid is not None)
            if is_done() or is_last:
                return
            # Leaves most of the time to a `start` and to other commands, which need the lock.
            time.sleep(max(POLL_INTERVAL_S, 3 * took_s))

    def close(self) -> list[float] | None:
        """Brings the state file up to date after rounds. Returns the shares in it if that changed them."""
        rounds, self._rounds = self._rounds, None
        with _described(self.store):
            return None if rounds is None else rounds.update_state_file()


@contextmanager
def _described(store: Store) -> Iterator[None]:
    """Turns an error of the file system into a SchedulerError with the remedy."""
    try:
        yield
    except OSError as error:
        from gpu_scheduler.health.storage import describe_store_error

        raise SchedulerError(describe_store_error(store.data_dir, error)) from None
