"""Cancels, retries, recovers, holds, releases and clears jobs, and changes their attributes.

Each function records a request for every job whose state allows it, wakes the scheduler if one is running,
and returns one answer per job. Refusals come first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpu_scheduler.app.answers import ALL_JOBS, COMMAND_LINE, Answer, AnswerKind, StopResult, unanswered
from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job, resolve_jobs
from gpu_scheduler.app.line_note import Note
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store, requested_verbs, scheduler_pid_of, wake_and_wait
from gpu_scheduler.core.model.request_answer import (
    ACCEPTED_STATES,
    AnswerCode,
    RequestAnswer,
    not_interrupted,
    wrong_state,
)
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.store.ancestors import failed_ancestors
from gpu_scheduler.store.dependencies import is_ancestor
from gpu_scheduler.store.job_lists import listed_count, open_jobs
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store

#: Maximum number of jobs that the refusal of a retry names.
_MAX_NAMED = 5
#: The states of jobs that `retry` accepts.
_RETRYABLE = frozenset(ACCEPTED_STATES["retry"])
#: The state into which each verb moves a job. Cancelling an active job does not change its state at once.
_EFFECTS = {
    "cancel": JobState.FINISHED,
    "line_removed": JobState.FINISHED,
    "retry": JobState.QUEUED,
    "requeue": JobState.QUEUED,
    "hold": JobState.HELD,
    "release": JobState.QUEUED,
    "recover": JobState.QUEUED,
}


@dataclass(frozen=True)
class SetResult:
    """The answers to the changes of a job. notes: the new parents because of which it will be skipped."""

    answers: tuple[Answer, ...]
    notes: tuple[Note, ...] = ()


def cancel(
    location: Location, jobs: Sequence[JobRef] | None, grace_s: float, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Cancels open jobs, even without a running scheduler. jobs: None means every open job.

    Raises SchedulerError if a job cannot be identified, or if the store is a copy.
    """
    with open_store(location) as store:
        ids = _open_jobs(store) if jobs is None else resolve_jobs(store, jobs)
        if not ids:
            return ()
        refuse_copy(store)
        requests, refused = _record_requests(store, "cancel", ids, by, {"grace_s": grace_s})
        answers = wake_and_wait(store, requests)
        unanswered = {requests[request] for request, answer in answers.items() if answer is None}
        stopped: Mapping[int, StopResult] = {}
        if unanswered and scheduler_pid_of(store) is None:
            from gpu_scheduler.app.without_scheduler import end_jobs

            stopped = end_jobs(store, unanswered, grace_s)
        return (*refused, *_answers(store, requests, answers, stopped))


def retry(location: Location, jobs: Sequence[JobRef] | None, *, by: str = COMMAND_LINE) -> tuple[Answer, ...]:
    """Queues finished or held jobs again. jobs: None means every failed job."""
    return _request_for_jobs(location, "retry", jobs, by)


def hold(location: Location, jobs: Sequence[JobRef], *, by: str = COMMAND_LINE) -> tuple[Answer, ...]:
    """Keeps queued jobs from starting."""
    return _request_for_jobs(location, "hold", jobs, by)


def release(location: Location, jobs: Sequence[JobRef], *, by: str = COMMAND_LINE) -> tuple[Answer, ...]:
    """Returns held jobs to the queue."""
    return _request_for_jobs(location, "release", jobs, by)


def recover(
    location: Location, jobs: Sequence[JobRef] | None, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Queues interrupted jobs again. jobs: None means every interrupted job."""
    if jobs is not None:
        return _request_for_jobs(location, "recover", jobs, by)
    from gpu_scheduler.app.without_scheduler import has_interrupted_jobs

    nothing = RequestAnswer(AnswerCode.RECOVERED)
    return _request_for_all(location, "recover", by, nothing, has_interrupted_jobs)


def clear(location: Location, jobs: Sequence[JobRef] | None, *, by: str = COMMAND_LINE) -> tuple[Answer, ...]:
    """Takes finished jobs out of the lists. jobs: None means every finished job."""
    if jobs is not None:
        return _request_for_jobs(location, "clear", jobs, by)
    nothing = RequestAnswer(AnswerCode.CLEARED, count=0)
    return _request_for_all(location, "clear", by, nothing, lambda store: listed_count(store) > 0)


def set_priority(
    location: Location, jobs: Sequence[JobRef], priority: int, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Changes the priority of waiting jobs."""
    return _request_for_jobs(location, "set", jobs, by, name="priority", value=priority)


def set_attributes(
    location: Location, job: JobRef, items: Sequence[str], *, by: str = COMMAND_LINE
) -> SetResult:
    """Changes attributes of a waiting job that has no line, or the dependencies of a skipped one.

    items: the changes, as in `vram=18G` or `vram=`. Nothing is requested unless all of them are valid. Raises
    UsageError or SchedulerError like `attribute_changes`.
    """
    from gpu_scheduler.app.attribute_changes import attribute_changes

    with open_store(location) as store:
        job_id = resolve_job(store, job)
        changes = attribute_changes(store, job_id, items)
        why = _refusal_of_changes(store, job_id, [one.args for one in changes])
        if why is not None:
            return SetResult((Answer(job_id, AnswerKind.REFUSED, why),))
        with store.db.transaction():
            requests = {add_request(store, "set", str(job_id), by, **one.args): job_id for one in changes}
        # Equal answers, such as the refusal of each change, are given once.
        answers = tuple(dict.fromkeys(_answers(store, requests, wake_and_wait(store, requests), {})))
        notes = () if any(answer.has_failed for answer in answers) else (one.notes for one in changes)
        return SetResult(answers, tuple(chain.from_iterable(notes)))


def _refusal_of_changes(
    store: Store, job_id: int, changes: Iterable[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns why no change may be requested; None if the scheduler may carry them out."""
    if any(is_ancestor(store, job_id, [one for one, _ in args.get("parents", ())]) for args in changes):
        return RequestAnswer(AnswerCode.CYCLE)
    is_finished = job_record(store, job_id).state is JobState.FINISHED
    if is_finished and all("parents" in args for args in changes):
        return None
    pending = requested_verbs(store).get(job_id, ())
    return _early_refusal(store, "set", job_id, pending, scheduler_pid_of(store) is not None)


def _request_for_jobs(
    location: Location, verb: str, jobs: Sequence[JobRef] | None, by: str, **args: object
) -> tuple[Answer, ...]:
    with open_store(location) as store:
        ids = _failed_jobs(store) if jobs is None else resolve_jobs(store, jobs)
        if not ids:
            return ()
        requests, refused = _record_requests(store, verb, ids, by, args)
        return (*refused, *_answers(store, requests, wake_and_wait(store, requests), {}))


def _request_for_all(
    location: Location, verb: str, by: str, nothing: RequestAnswer, has_any: Callable[[Store], bool]
) -> tuple[Answer, ...]:
    """Records one request for all jobs that it applies to.

    nothing: the answer if no scheduler is running and has_any returns False.
    """
    with open_store(location) as store:
        if scheduler_pid_of(store) is None and not has_any(store):
            return (Answer(ALL_JOBS, AnswerKind.CARRIED_OUT, nothing),)
        [reply] = wake_and_wait(store, [add_request(store, verb, by=by)]).values()
        if reply is None:
            return (unanswered(ALL_JOBS, scheduler_pid_of(store)),)
        queued = RequestAnswer(AnswerCode.QUEUED)
        recovered = tuple(Answer(job_id, AnswerKind.CARRIED_OUT, queued) for job_id in reply.jobs)
        return recovered or (Answer(ALL_JOBS, AnswerKind.CARRIED_OUT, reply),)


def _record_requests(
    store: Store, verb: str, jobs: Collection[int], by: str, args: Mapping[str, object]
) -> tuple[dict[int, int], list[Answer]]:
    """Records a request for each job whose state allows it, all in one transaction.

    Returns the job of each request, and the answers for the refused jobs.
    """
    made: dict[int, int] = {}
    refused: list[Answer] = []
    up = scheduler_pid_of(store) is not None
    with store.db.transaction():
        pending = requested_verbs(store)
        for job_id in jobs:
            why = _early_refusal(store, verb, job_id, pending.get(job_id, ()), up)
            if why is None and verb == "retry" and not up:
                why = _refusal_of_retry(store, job_id, {*jobs, *pending})
            if why is None:
                made[add_request(store, verb, str(job_id), by, **args)] = job_id
            else:
                refused.append(_refused(store, job_id, why))
    return made, refused


def _early_refusal(
    store: Store, verb: str, job_id: int, pending: Iterable[str], is_up: bool
) -> RequestAnswer | None:
    """Returns the answer to a request that is refused without being recorded; None for any other request."""
    job = store.job(job_id)
    if job is None:
        return RequestAnswer(AnswerCode.NO_SUCH_JOB)
    if is_up:
        return None  # the scheduler decides, based on the job's state when it reads the request
    observed = _observed(store, job)
    after = predicted_state(observed.state, pending)
    if verb == "recover":
        is_interrupted = observed.is_interrupted
        return None if is_interrupted and after is not JobState.FINISHED else not_interrupted(after)
    if observed.state is JobState.FINISHED is not job.state:
        code = AnswerCode.ALREADY_FINISHED if verb == "cancel" else AnswerCode.ENDED_UNRECORDED
        return RequestAnswer(
            code,
            verb=verb,
            outcome=observed.outcome or Outcome.ENDED,
            exit_code=observed.exit_code,
            signal=observed.signal,
            is_recorded=False,
        )
    if verb == "cancel":
        finished = job.state is after is JobState.FINISHED and job.outcome is not Outcome.SKIPPED
        return RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=job.outcome) if finished else None
    return None if after in ACCEPTED_STATES[verb] else wrong_state(verb, after)


def _refusal_of_retry(store: Store, job_id: int, retried: AbstractSet[int]) -> RequestAnswer | None:
    """Returns the refusal if the job would be skipped, because jobs failed that are not retried as well."""
    job = job_record(store, job_id)
    failed = failed_ancestors(store, job_id, _MAX_NAMED) if job.failed_parents else []
    if job.state is not JobState.FINISHED or retried >= set(failed):
        return None
    return RequestAnswer(AnswerCode.PARENT_FAILED, parent=failed[0])


def _observed(store: Store, job: JobRecord) -> JobRecord:
    """Returns a job in the state that the next round records."""
    if job.state not in ACTIVE:
        return job
    from gpu_scheduler.app.without_scheduler import observed_job

    return observed_job(store, job)


def _open_jobs(store: Store) -> list[int]:
    """Returns the jobs that are open in the store and have not ended since then, oldest first."""
    open_states = [state for state in JobState if state is not JobState.FINISHED]
    jobs = sorted(open_jobs(store, open_states), key=lambda job: job.id)
    return [job.id for job in jobs if _observed(store, job).state is not JobState.FINISHED]


def _failed_jobs(store: Store) -> list[int]:
    """Returns the failed jobs that no open request will queue again, oldest first."""
    from gpu_scheduler.app.status import failed_jobs

    pending = requested_verbs(store)
    return sorted(
        job.record.id
        for job in failed_jobs(store)
        if predicted_state(JobState.FINISHED, pending.get(job.record.id, ())) in _RETRYABLE
    )


def _answers(
    store: Store,
    requests: Mapping[int, int],
    answers: Mapping[int, RequestAnswer | None],
    stopped: Mapping[int, StopResult],
) -> list[Answer]:
    """Returns the answer to each request. stopped: the results of the jobs that this command ended itself."""
    pid = scheduler_pid_of(store)
    made = []
    for request, reply in answers.items():
        job_id = requests[request]
        if reply is not None:
            accepted = Answer(job_id, AnswerKind.CARRIED_OUT, reply)
            made.append(_refused(store, job_id, reply) if reply.is_refusal else accepted)
        elif job_id in stopped:
            made.append(Answer(job_id, AnswerKind.STOPPED, stop_result=stopped[job_id]))
        else:
            made.append(unanswered(job_id, pid))
    return made


def _refused(store: Store, job_id: int, why: RequestAnswer) -> Answer:
    if why.parent is None:
        return Answer(job_id, AnswerKind.REFUSED, why)
    roots = tuple(failed_ancestors(store, job_id, _MAX_NAMED))
    is_skipped = job_record(store, job_id).outcome is Outcome.SKIPPED
    return Answer(job_id, AnswerKind.REFUSED, why, failed_ancestors=roots, is_skipped=is_skipped)


def predicted_state(state: JobState, verbs: Iterable[str]) -> JobState:
    """Returns a job's state after these requests, in this order. A verb that does not apply is ignored."""
    for verb in verbs:
        if verb in _EFFECTS and state in ACCEPTED_STATES[verb]:
            state = _EFFECTS[verb]
    return state
