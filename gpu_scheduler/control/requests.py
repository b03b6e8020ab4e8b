"""Has the requests of a front end carried out, defines and formats the answers, and pauses GPUs.

The scheduler carries them out or, if none is running, rounds of this process. Only rounds change jobs. A
server does not run rounds; the next `start` carries out what it has recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.request import RequestAnswer
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import Code
from gpu_scheduler.errors import SchedulerError, StoreNotFoundError
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import ANSWER_TIMEOUT_S, POLL_INTERVAL_S, open_store
from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
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


def answer_text(answer: Answer, data_dir: str) -> str:
    """Formats the answer to a request as text that is safe to print. data_dir: the path of the store."""
    said, reply = "; ".join(filter(None, (answer.kind.sentence, answer.kind.remedy))), answer.reply
    if said:
        from gpu_scheduler.core.text.formatting import pid_text

        return said.format(target=answer.target, scheduler=pid_text(answer.scheduler_pid or 0))
    return "" if reply is None else reply.code.fill(reply, _PHRASES, answer, data_dir)


def _safe(text: str) -> str:
    from gpu_scheduler.core.text.formatting import safe_text

    return safe_text(text)


def _retries(reply: RequestAnswer, answer: Answer, _: str) -> str:
    """Formats the commands that retry a job together with the jobs because of which it would be skipped."""
    job, parents = answer.target, " ".join(map(str, answer.failed_ancestors or [reply.parent]))
    if answer.is_skipped:
        return f"`retry {parents}` first, which also queues the jobs that were skipped because of it"
    return f"`retry {parents} {job}`, or change what job {job} waits for"


def _wrong_state(reply: RequestAnswer, answer: Answer, _: str) -> str:
    """Formats the state of a job, after its name, and the states in which the request is possible."""
    job, verb, state, wanted = answer.target, reply.verb, reply.state, " or ".join(map(str, reply.accepted))
    if verb == "hold" and state is JobState.HELD:
        return f"already held; `why {job}` shows how it can be queued again"
    if verb == "set":  # the request of several commands
        remedy = f"; `retry {job} --set KEY=VALUE` changes it and queues it again"
        return f"{state}; only a job that is {wanted} can be changed{remedy * (state is JobState.FINISHED)}"
    name = "`resume --job`" if verb == "resume_job" else verb
    remedy = f"; `hold {job}` keeps it from starting" * (verb == "preempt" and state is JobState.QUEUED)
    return f"{state}; {name} needs a job that is {wanted}{remedy}"


def _cleared(reply: RequestAnswer, *_: object) -> str:
    if not reply.count:
        return "cleared" if reply.count is None else "there are no finished jobs to clear"
    return f"{reply.count:,} job{'s' * (reply.count > 1)} cleared"


def _end(reply: RequestAnswer, *_: object) -> str:
    from gpu_scheduler.show.job_text import outcome_text

    return outcome_text(reply.outcome or Outcome.ENDED, reply.exit_code, reply.signal)


def _again(reply: RequestAnswer, answer: Answer, _: str) -> str:
    is_idle = reply.state in (JobState.FINISHED, JobState.HELD)
    return f"; `retry {answer.target}` runs it again" if is_idle else ""


#: The phrases in the sentences of `AnswerCode`.
_PHRASES: Mapping[str, Callable[[RequestAnswer, Answer, str], str]] = {
    "job": lambda it, answer, _: str(answer.target),
    "data_dir": lambda it, answer, data_dir: _safe(data_dir),
    "attribute": lambda it, *_: _safe(it.attribute),
    "queued": lambda it, *_: (
        f"{_safe(it.attribute)} set, and queued again" if it.attribute else "queued again"
    ),
    "cleared": _cleared,
    "changed": lambda it, *_: "held" if it.verb == "hold" else "changed",
    "wrong_state": _wrong_state,
    "end": _end,
    "again": _again,
    "retries": _retries,
}


def set_paused(
    location: Location, gpus: Collection[int] | None, *, paused: bool, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Keeps new jobs off these GPUs, or lets the GPUs accept them again; None means every managed GPU.

    Raises SchedulerError if a GPU is not managed.
    """
    try:
        with control(location) as store_control:
            return _request_in_store(store_control, gpus, by, paused)
    except StoreNotFoundError:
        return _write_state_file(location, gpus, paused)


def _write_state_file(location: Location, gpus: Collection[int] | None, paused: bool) -> tuple[Answer, ...]:
    """Writes the request into the state file, because no store exists before the first start.

    Raises SchedulerError if the file cannot be changed, or if the request is for all GPUs.
    """
    path = location.resolve().state_file
    verb = "pause" if paused else "resume"
    if gpus is None:
        raise SchedulerError(
            f"the GPUs are not known before the first `start`; list them, as in `{verb} 0,1`"
        )
    named = sorted(set(gpus))
    try:
        state_file.edit_pauses_in_file(path, named, paused)
    except ValueError as error:
        raise SchedulerError(f"{path}: {error}\ncorrect the file or move it away") from None
    except OSError as error:
        raise SchedulerError(f"{path} cannot be changed ({error.strerror}); no GPU was {verb}d") from None
    kind = AnswerKind.IN_STATE_FILE if path.exists() else AnswerKind.NOTHING_TO_DO
    return tuple(Answer(gpu, kind) for gpu in named)


def _request_in_store(
    store_control: Control, gpus: Collection[int] | None, by: str, paused: bool
) -> tuple[Answer, ...]:
    store = store_control.store
    chosen = _selected_gpus(store, gpus, paused)
    is_up = store_control.scheduler_pid is not None
    requests = state_file.request_pauses(store, chosen.values(), paused, by, scheduler_is_up=is_up)
    answers = store_control.carry_out(requests)
    pid = store_control.scheduler_pid
    return tuple(
        unanswered(gpu, pid, request) if reply is None else Answer(gpu, AnswerKind.CARRIED_OUT, reply)
        for gpu, (request, reply) in zip(chosen, answers.items(), strict=True)
    )


def _selected_gpus(store: Store, gpus: Collection[int] | None, paused: bool) -> dict[int, str]:
    """Returns the UUIDs of these GPUs, or of all managed GPUs if `gpus` is None, by index."""
    managed = store.managed_gpus()
    if not managed:
        raise SchedulerError(
            f"no GPUs are recorded in {store.data_dir.folder} yet; the first `start` records them"
        )
    if gpus is None:
        return managed
    named = sorted(set(gpus))
    unknown = [gpu for gpu in named if gpu not in managed]
    if unknown:
        which = f"GPU {unknown[0]} is" if len(unknown) == 1 else f"GPUs {format_gpu_list(unknown)} are"
        job = store.job(unknown[0]) if len(unknown) == 1 else None
        verb = "hold" if paused else "resume --job"
        hint = "" if job is None else f"; for job {job.id}, use `{verb} {job.id}`"
        raise SchedulerError(f"{which} not managed; the managed GPUs are {format_gpu_list(managed)}{hint}")
    return {gpu: managed[gpu] for gpu in named}


def gpu_answer_text(answer: Answer, home: DataDir, *, paused: bool) -> str:
    """Formats the answer as text that is safe to print."""
    if answer.kind is AnswerKind.NOTHING_TO_DO:
        return "not paused, because no scheduler has run here yet"
    if answer.kind is AnswerKind.IN_STATE_FILE:
        from gpu_scheduler.core.text.formatting import safe_text

        done = "paused" if paused else "resumed"
        return f"{done} in {safe_text(str(home.state_file))}, which the first `start` reads"
    return answer_text(answer, str(home.folder))
