"""Cancels, retries, recovers, holds, releases and clears jobs, and changes their attributes.

Each function records a request for every job whose state allows it, wakes the scheduler if one is running,
and returns one answer per job. Refusals come first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_scheduler.app.answers import ALL_JOBS, COMMAND_LINE, Answer, AnswerKind, StopResult, unanswered
from gpu_scheduler.app.job_refs import JobRef, resolve_job, resolve_jobs
from gpu_scheduler.app.line_note import Note
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.refusals import (
    early_refusal,
    observed,
    predicted_state,
    refusal_of_changes,
    refusal_of_retry,
    refusal_of_retry_with_changes,
    refused_answer,
)
from gpu_scheduler.app.store_access import open_store, requested_verbs, scheduler_pid_of, wake_and_wait
from gpu_scheduler.core.model.request_answer import (
    ACCEPTED_STATES,
    AnswerCode,
    RequestAnswer,
)
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.store.job_lists import listed_count, open_jobs
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.requests import add_request, open_requests
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.app.attribute_changes import AttributeChange

#: The states of jobs that `retry` accepts.
_RETRYABLE = frozenset(ACCEPTED_STATES["retry"])
#: The outcomes of the jobs of a group that `retry` queues again.
_RETRIED = FAILED | {Outcome.CANCELLED, Outcome.INTERRUPTED, Outcome.PREEMPTED}


@dataclass(frozen=True)
class SetResult:
    """The answers to changes of jobs. notes: the new parents because of which they will be skipped."""

    answers: tuple[Answer, ...]
    notes: tuple[Note, ...] = ()


def cancel(
    location: Location, jobs: Sequence[JobRef] | None, grace_s: float, *, by: str = COMMAND_LINE
) -> tuple[Answer, ...]:
    """Cancels open jobs, even without a running scheduler.

    jobs: None means every open job, except adopted processes, because they were started elsewhere.
    Raises SchedulerError if a job cannot be identified, or if the store is a copy.
    """
    with open_store(location) as store:
        open_ones = _open_jobs(store) if jobs is None else []
        spared = [Answer(job.id, AnswerKind.SPARED) for job in open_ones if job.adopted is not None]
        ids = [job.id for job in open_ones if job.adopted is None]
        ids = _resolve(store, "cancel", jobs) if jobs is not None else ids
        if not ids:
            return tuple(spared)
        refuse_copy(store)
        requests, refused = _record_requests(store, "cancel", ids, by, {"grace_s": grace_s})
        answers = wake_and_wait(store, requests)
        unanswered = {requests[request] for request, answer in answers.items() if answer is None}
        stopped: Mapping[int, StopResult] = {}
        if unanswered and scheduler_pid_of(store) is None:
            from gpu_scheduler.app.without_scheduler import end_jobs

            stopped = end_jobs(store, unanswered, grace_s)
        return (*refused, *_answers(store, requests, answers, stopped), *spared)


def retry(
    location: Location, jobs: Sequence[JobRef] | None, items: Sequence[str] = (), *, by: str = COMMAND_LINE
) -> SetResult:
    """Queues finished or held jobs again. jobs: None means every failed job.

    items: the changes to make first, as for `set_attributes`. The scheduler makes them with the retry.
    """
    changes: dict[int, list[AttributeChange]] = {}
    with open_store(location) as store:
        ids = _failed_jobs(store) if jobs is None else _resolve(store, "retry", jobs)
        if items:
            from gpu_scheduler.app.attribute_changes import attribute_changes

            changes = {job_id: attribute_changes(store, job_id, items) for job_id in ids}
        args = {job_id: _retry_args(made) for job_id, made in changes.items()}
        requests, refused = _record_requests(store, "retry", ids, by, {}, args)
        answers = (*refused, *_answers(store, requests, wake_and_wait(store, requests), {}))
        made = chain.from_iterable(changes.get(job_id, ()) for job_id in requests.values())
        return SetResult(answers, tuple(chain.from_iterable(one.notes for one in made)))


def _retry_args(changes: Sequence[AttributeChange]) -> dict[str, Any]:
    made = [one.args for one in changes]
    lists = [args["parents"] for args in made if "parents" in args]
    return {"changes": made, **({"parents": list(chain.from_iterable(lists))} if lists else {})}


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
        why = refusal_of_changes(store, job_id, [one.args for one in changes])
        if why is not None:
            return SetResult((Answer(job_id, AnswerKind.REFUSED, why),))
        with store.db.transaction():
            requests = {add_request(store, "set", str(job_id), by, **one.args): job_id for one in changes}
        # Equal answers, such as the refusal of each change, are given once.
        made = _answers(store, requests, wake_and_wait(store, requests), {})
        answers = tuple({replace(one, request=None): one for one in made}.values())
        notes = () if any(answer.has_failed for answer in answers) else (one.notes for one in changes)
        return SetResult(answers, tuple(chain.from_iterable(notes)))


def request_for_job(store: Store, verb: str, job_id: int, by: str, **args: object) -> Answer:
    """Records a request for one job, wakes the scheduler and returns the answer."""
    requests, refused = _record_requests(store, verb, [job_id], by, args)
    return (refused or _answers(store, requests, wake_and_wait(store, requests), {}))[0]


def _request_for_jobs(
    location: Location, verb: str, jobs: Sequence[JobRef], by: str, **args: object
) -> tuple[Answer, ...]:
    with open_store(location) as store:
        ids = _resolve(store, verb, jobs)
        if not ids:
            return ()
        requests, refused = _record_requests(store, verb, ids, by, args)
        return (*refused, *_answers(store, requests, wake_and_wait(store, requests), {}))


def _resolve(store: Store, verb: str, refs: Sequence[JobRef]) -> list[int]:
    """Returns the ids of the jobs; of those of a group, only the ones to which the verb applies."""
    pending = requested_verbs(store) if any(isinstance(ref, str) for ref in refs) else {}

    def concerns(job: JobRecord) -> bool:
        if verb == "retry" and observed(store, job).outcome not in _RETRIED and not job.is_interrupted:
            return False
        return early_refusal(store, verb, job.id, pending.get(job.id, ()), is_up=False) is None

    return resolve_jobs(store, refs, concerns)


def _request_for_all(
    location: Location, verb: str, by: str, nothing: RequestAnswer, has_any: Callable[[Store], bool]
) -> tuple[Answer, ...]:
    """Records one request for all jobs that it applies to.

    nothing: the answer if no scheduler is running and has_any returns False.
    """
    with open_store(location) as store:
        if scheduler_pid_of(store) is None and not has_any(store):
            return (Answer(ALL_JOBS, AnswerKind.CARRIED_OUT, nothing),)
        [(request, reply)] = wake_and_wait(store, [add_request(store, verb, by=by)]).items()
        if reply is None:
            return (unanswered(ALL_JOBS, scheduler_pid_of(store), request),)
        queued = RequestAnswer(AnswerCode.QUEUED)
        recovered = tuple(Answer(job_id, AnswerKind.CARRIED_OUT, queued) for job_id in reply.jobs)
        return recovered or (Answer(ALL_JOBS, AnswerKind.CARRIED_OUT, reply),)


def _record_requests(
    store: Store,
    verb: str,
    jobs: Collection[int],
    by: str,
    args: Mapping[str, Any],
    args_of: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[dict[int, int], list[Answer]]:
    """Records a request for each job whose state allows it, all in one transaction.

    args_of: further arguments for single jobs. Returns the job of each request, and the answers for the
    refused jobs.
    """
    made: dict[int, int] = {}
    refused: list[Answer] = []
    up = scheduler_pid_of(store) is not None
    with store.db.transaction():
        pending = requested_verbs(store)
        changed = {int(one.target) for one in open_requests(store) if "parents" in one.args}
        for job_id in jobs:
            given = {**args, **args_of.get(job_id, {})}
            why = early_refusal(store, verb, job_id, pending.get(job_id, ()), up)
            if "changes" in given:
                why = refusal_of_retry_with_changes(store, job_id, given, why)
            has_old_parents = job_id not in changed and "parents" not in given
            if why is None and verb == "retry" and not up and has_old_parents:
                why = refusal_of_retry(store, job_id, {*jobs, *pending})
            if why is None:
                made[add_request(store, verb, str(job_id), by, **given)] = job_id
            else:
                refused.append(refused_answer(store, job_id, why))
    return made, refused


def _open_jobs(store: Store) -> list[JobRecord]:
    """Returns the jobs that are open in the store and have not ended since then, oldest first."""
    open_states = [state for state in JobState if state is not JobState.FINISHED]
    jobs = sorted(open_jobs(store, open_states), key=lambda job: job.id)
    return [job for job in jobs if observed(store, job).state is not JobState.FINISHED]


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
            made.append(refused_answer(store, job_id, reply) if reply.is_refusal else accepted)
        elif job_id in stopped:
            made.append(Answer(job_id, AnswerKind.STOPPED, stop_result=stopped[job_id]))
        else:
            made.append(unanswered(job_id, pid, request))
    return made
