"""Preempts a running job: asks it to save its work and to end, and waits until it has ended or continues.

The scheduler carries out the request. If none is running, or if it ends while the command waits, the command
writes the file `stop` of the attempt itself, with the same id, so that the next scheduler does not repeat it.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from gpu_scheduler.app.answers import COMMAND_LINE
from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.app.without_scheduler import STOP_MARGIN_S, observed_job, observed_status, write_stop
from gpu_scheduler.attempts.executor import LOCAL_EXECUTORS
from gpu_scheduler.attempts.running_progress import newest_checkpoint, progress_source
from gpu_scheduler.attempts.sweep import recorded_command
from gpu_scheduler.core.model.attempt_status import AttemptStatus, Checkpoint, ProgressUnit, StopRequest
from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import ACTIVE, AttemptState, JobState, Outcome
from gpu_scheduler.core.progress.eta import JobProgress
from gpu_scheduler.progress.job_progress import ProgressReader
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.records import ActiveAttemptRecord, AttemptRecord, JobRecord
from gpu_scheduler.store.requests import add_request, request_answer, withdraw_request
from gpu_scheduler.store.store import Store

#: Seconds between two looks at the attempt.
_POLL_INTERVAL_S = 0.05


class PreemptEnd(str, Enum):
    """The end of a preemption, as the command that requested it saw it.

    ended        the attempt has ended, because of the preemption or for another reason
    withdrawn    the job had not ended in time, and continues
    refused      the job cannot be preempted
    pending      the attempt has neither ended nor continued in time; the request stays open
    """

    ENDED = "ended"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"
    PENDING = "pending"


@dataclass(frozen=True)
class PreemptWait:
    """The preemption that the command waits for.

    pid: that of the job's command; None if it is not known. is_repeated: whether the job is being preempted
    already; `stop` is then combined from both requests.
    """

    job_id: int
    pid: int | None
    stop: StopRequest
    is_repeated: bool = False


@dataclass(frozen=True)
class PreemptReport:
    """The result of a preemption.

    refusal: why the job cannot be preempted. job: the job afterwards, in its observed state. outcome,
    exit_code, signal: how the attempt ended. checkpoint: the newest complete one; None if there is none.
    lost_steps: the number of steps after it that the job had done; None if unknown. ended_at: when the
    attempt ended, in wall seconds. scheduler_pid: None if no scheduler is running. request: the id of the
    request, None if none was made.
    """

    job_id: int
    end: PreemptEnd
    job: JobRecord
    refusal: RequestAnswer | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    checkpoint: Checkpoint | None = None
    lost_steps: float | None = None
    ended_at: float | None = None
    scheduler_pid: int | None = None
    request: int | None = None


def preempt(
    location: Location,
    ref: JobRef,
    timeout_s: float,
    *,
    force: bool = False,
    by: str = COMMAND_LINE,
    on_wait: Callable[[PreemptWait], None] = lambda _: None,
    max_wait_s: float = math.inf,
) -> PreemptReport:
    """Preempts a job and waits until its attempt has ended or continues.

    timeout_s: the seconds that the job may take to end. After that, it gets SIGKILL if `force` is set;
    otherwise the request is withdrawn and the job continues. on_wait: called before the wait, which lasts at
    most `max_wait_s` seconds. Raises SchedulerError if the job cannot be identified, its folder cannot be
    used, or the store is a copy.
    """
    with open_store(location) as store:
        job_id = resolve_job(store, ref)
        job = observed_job(store, job_record(store, job_id))
        attempt = None if job.is_unwatched else _open_attempt(store, job_id)
        refusal = _refusal(job)
        if refusal is None and attempt is None and not job.is_unwatched:
            refusal = wrong_state("preempt", job.state)
        if refusal is not None:
            return PreemptReport(job_id, PreemptEnd.REFUSED, job, refusal)
        refuse_copy(store)
        stop = StopRequest(
            "preempted",
            timeout_s,
            "kill" if force else "withdraw",
            secrets.token_hex(8),
            job.spec.preempt_signal or DEFAULT_STOP_SIGNAL,
        )
        effective = stop if attempt is None else stop.combined_with(attempt.stop_request)
        if attempt is not None:
            is_repeated = attempt.stop_request is not None
            on_wait(PreemptWait(job_id, _command_pid(store, attempt), effective, is_repeated))
        args = {"stop_id": stop.stop_id, "grace_s": stop.grace_s, "on_timeout": stop.on_timeout}
        request = add_request(store, "preempt", str(job_id), by, **args)
        store.data_dir.ring_doorbell()
        if attempt is None:
            # The scheduler first watches the adopted process, then carries out the request.
            pid = scheduler_pid_of(store)
            return PreemptReport(job_id, PreemptEnd.PENDING, job, scheduler_pid=pid, request=request)
        return _Preemption(store, attempt, effective, request).wait(max_wait_s)


def _open_attempt(store: Store, job_id: int) -> ActiveAttemptRecord | None:
    found = (one for one in store.active_attempts() if one.job_id == job_id and one.state.is_open)
    return next(found, None)


def _refusal(job: JobRecord) -> RequestAnswer | None:
    if job.state is JobState.FINISHED:
        return RequestAnswer(
            AnswerCode.ALREADY_FINISHED,
            outcome=job.outcome or Outcome.ENDED,
            exit_code=job.exit_code,
            signal=job.signal,
        )
    if job.state not in ACTIVE and not job.is_unwatched:
        return wrong_state("preempt", job.state)
    is_cancelled = job.stop_cause not in (None, "preempted")
    return RequestAnswer(AnswerCode.BEING_CANCELLED) if is_cancelled else None


def _command_pid(store: Store, attempt: ActiveAttemptRecord) -> int | None:
    if attempt.watched_pid is not None:
        return attempt.watched_pid
    command = recorded_command(store.data_dir.attempt_folder(attempt), attempt.token)
    return None if command is None else command.pid


def _outcome_of(job: JobRecord) -> Outcome | None:
    """Returns how the attempt of an observed job ended; None if it has not ended, or is to be retried."""
    if job.state is JobState.HELD and job.held_by is not None:
        return Outcome(job.held_by)
    return job.outcome


def _lost_steps(found: JobProgress) -> float | None:
    progress, checkpoint = found.progress, found.checkpoint
    if progress is None or progress.unit is not ProgressUnit.STEP:
        return None
    if checkpoint is None or checkpoint.step is None:
        return None
    return max(0.0, progress.current - checkpoint.step)


class _Preemption:
    """One preemption that this command has requested. request: the id of the request in the store."""

    def __init__(self, store: Store, attempt: AttemptRecord, stop: StopRequest, request: int) -> None:
        self._store, self._attempt, self._stop, self._request = store, attempt, stop, request
        #: Whether this command has written the file `stop` itself.
        self._has_written = False

    def wait(self, max_wait_s: float) -> PreemptReport:
        """Waits for the end of the preemption and returns its report."""
        deadline = time.monotonic() + min(max_wait_s, self._stop.grace_s + 2 * STOP_MARGIN_S)
        while (end := self._step()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
        if end is PreemptEnd.WITHDRAWN:
            # If no scheduler has answered yet, the next one must not take up the request.
            withdraw_request(self._store, self._request)
        if end is None and self._has_ended(observed_status(self._store, self._attempt)):
            end = PreemptEnd.ENDED
        return self._report(end or PreemptEnd.PENDING)

    def _step(self) -> PreemptEnd | None:
        """Observes the attempt; returns the end of the preemption, or None if it has none yet."""
        recorded = self._store.attempt(self._attempt.id)
        if recorded is None or not recorded.state.is_open:
            return None if self._is_watched_again() else PreemptEnd.ENDED
        status = observed_status(self._store, self._attempt)
        is_up = scheduler_pid_of(self._store) is not None
        if status.is_over:
            if is_up:
                return None
            return PreemptEnd.ENDED if self._has_ended(status) else PreemptEnd.PENDING
        if status.withdrawn is not None and status.withdrawn.stop_id == self._stop.stop_id:
            return PreemptEnd.WITHDRAWN
        answer = request_answer(self._store, self._request)
        if answer is not None and answer.is_refusal:
            return PreemptEnd.REFUSED
        is_forced = self._stop.on_timeout == "kill"
        if self._has_written and is_forced and (status.stop is None or status.stop.on_timeout != "kill"):
            # A `preempt` that read the file before this command wrote it has replaced this request.
            self._has_written = False
        elif status.stop is None and (self._has_written or self._is_cleared(answer)):
            # Another preemption has replaced this one and was withdrawn.
            return PreemptEnd.WITHDRAWN
        if not is_up and not self._has_written and self._is_open(answer):
            if self._attempt.executor not in LOCAL_EXECUTORS:
                return PreemptEnd.PENDING
            write_stop(self._store, self._attempt, self._stop)
            self._has_written = True
        return None

    def _is_open(self, answer: RequestAnswer | None) -> bool:
        """Returns whether no scheduler has carried out the request, or none has replaced it since."""
        return answer is None or job_record(self._store, self._attempt.job_id).stop_id == self._stop.stop_id

    def _has_ended(self, status: AttemptStatus) -> bool:
        """Returns whether the job has ended. An adopted process may outlive its watcher."""
        return status.is_over and (status.result is not None or self._attempt.watched_pid is None)

    def _is_watched_again(self) -> bool:
        """Returns whether the job is an adopted process whose watcher died; follows the next watcher."""
        job = job_record(self._store, self._attempt.job_id)
        newest = self._store.attempts(job.id)[-1]
        if newest.id != self._attempt.id and newest.watched_pid is not None:
            self._attempt, self._has_written = newest, False
        # The attempt of the next watcher may have ended since the last look.
        return newest.state.is_open or job.adopted is not None

    def _is_cleared(self, answer: RequestAnswer | None) -> bool:
        """Returns whether the scheduler has carried out the request and the job continues without it."""
        if answer is None:
            return False
        attempt = self._store.attempt(self._attempt.id)
        is_running = attempt is not None and attempt.state is AttemptState.RUNNING
        return is_running and job_record(self._store, self._attempt.job_id).stop_cause is None

    def _report(self, end: PreemptEnd) -> PreemptReport:
        store, job_id = self._store, self._attempt.job_id
        answer = request_answer(store, self._request) if end is PreemptEnd.REFUSED else None
        job = observed_job(store, job_record(store, job_id))
        attempt = store.attempt(self._attempt.id) or self._attempt
        pid = scheduler_pid_of(store)
        report = PreemptReport(job_id, end, job, answer, scheduler_pid=pid, request=self._request)
        if end is not PreemptEnd.ENDED:
            return report
        seen = attempt if not attempt.state.is_open else None
        progress = self._progress(job, attempt)
        return replace(
            report,
            outcome=seen.outcome if seen else _outcome_of(job),
            exit_code=seen.exit_code if seen else job.exit_code,
            signal=seen.signal if seen else job.signal,
            checkpoint=progress.checkpoint,
            lost_steps=_lost_steps(progress),
            ended_at=seen.ended_at if seen else self._ended_at(),
        )

    def _progress(self, job: JobRecord, attempt: AttemptRecord) -> JobProgress:
        store = self._store
        progress = ProgressReader().read(progress_source(store, job.spec, attempt), time.time())
        # `resume --job` continues with this checkpoint, which may be the one that the attempt started with.
        checkpoint = newest_checkpoint(store, job.spec, store.attempts(job.id))
        return replace(progress, checkpoint=checkpoint)

    def _ended_at(self) -> float | None:
        result = observed_status(self._store, self._attempt).result
        return None if result is None else result.ended_at
