"""Decides which requests a command refuses without recording them.

While a scheduler is running, it decides itself, based on the state of the job when it reads the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gpu_scheduler.app.answers import Answer, AnswerKind
from gpu_scheduler.app.job_refs import job_record
from gpu_scheduler.app.store_access import requested_verbs, scheduler_pid_of
from gpu_scheduler.core.model.job_spec import RESTART_FIELDS
from gpu_scheduler.core.model.request import UNFINISHED
from gpu_scheduler.core.model.request_answer import (
    ACCEPTED_STATES,
    AnswerCode,
    RequestAnswer,
    not_interrupted,
    unfinished_work,
    wrong_state,
)
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.store.dependencies import failed_ancestors, is_ancestor
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: Maximum number of jobs that the refusal of a retry names.
_MAX_NAMED = 5
#: The state into which each verb moves a job. Cancelling an active job does not change its state at once.
_EFFECTS = {
    "cancel": JobState.FINISHED,
    "line_removed": JobState.FINISHED,
    "retry": JobState.QUEUED,
    "resume_job": JobState.QUEUED,
    "requeue": JobState.QUEUED,
    "hold": JobState.HELD,
    "release": JobState.QUEUED,
    "recover": JobState.QUEUED,
}


def early_refusal(
    store: Store, verb: str, job_id: int, pending: Sequence[str], is_up: bool
) -> RequestAnswer | None:
    """Returns the answer to a request that is refused without being recorded; None for any other request."""
    job = store.job(job_id)
    if job is None:
        return RequestAnswer(AnswerCode.NO_SUCH_JOB)
    if verb in ("retry", "resume_job", "recover") and not job.spec.can_start:
        return RequestAnswer(AnswerCode.NO_COMMAND)
    if is_up:
        return None
    if job.adopted is not None and verb in ("hold", "set"):
        # The scheduler watches the process before it reads requests, so the request would have no effect.
        return RequestAnswer(AnswerCode.NOT_WATCHED, verb=verb)
    current = observed(store, job)
    after = predicted_state(current.state, pending)
    if verb == "recover":
        is_refused = not current.is_interrupted or after is JobState.FINISHED
        return not_interrupted(after) if is_refused else None
    if verb == "cancel":
        return _refusal_of_cancel(job, current, after)
    if verb == "release" and current.state is after is JobState.HELD and current.held_by in UNFINISHED:
        return unfinished_work(current.held_by)
    # A repeated request has no effect of its own, but its user wants what is already requested.
    is_repeated = verb in pending and after is _EFFECTS.get(verb)
    return None if after in ACCEPTED_STATES[verb] or is_repeated else wrong_state(verb, after)


def _refusal_of_cancel(job: JobRecord, current: JobRecord, after: JobState) -> RequestAnswer | None:
    """Returns the refusal if the job has finished and no open request queues it again."""
    is_over = current.state is JobState.FINISHED is after
    if not is_over or current.outcome is Outcome.SKIPPED:
        return None
    return RequestAnswer(
        AnswerCode.ALREADY_FINISHED,
        outcome=current.outcome or Outcome.ENDED,
        exit_code=current.exit_code,
        signal=current.signal,
        is_recorded=current.state is job.state,
    )


def refusal_of_changes(
    store: Store, job_id: int, changes: Sequence[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns why no change may be requested; None if the scheduler may carry them out."""
    if any(is_ancestor(store, job_id, [one for one, _ in args.get("parents", ())]) for args in changes):
        return RequestAnswer(AnswerCode.CYCLE)
    is_finished = job_record(store, job_id).state is JobState.FINISHED
    if is_finished and all("parents" in args or args["name"] in RESTART_FIELDS for args in changes):
        return None
    pending = requested_verbs(store).get(job_id, ())
    return early_refusal(store, "set", job_id, pending, scheduler_pid_of(store) is not None)


def refusal_of_retry_with_changes(
    store: Store, job_id: int, args: Mapping[str, Any], why: RequestAnswer | None
) -> RequestAnswer | None:
    """Returns the refusal of a retry that changes attributes first. why: its refusal without the changes."""
    if is_ancestor(store, job_id, [parent for parent, _ in args.get("parents", ())]):
        return RequestAnswer(AnswerCode.CYCLE)
    sets_command = any(change["name"] == "command" for change in args["changes"])
    return None if sets_command and why is not None and why.code is AnswerCode.NO_COMMAND else why


def refusal_of_retry(store: Store, job_id: int, retried: AbstractSet[int]) -> RequestAnswer | None:
    """Returns the refusal if the job would be skipped, because jobs failed that are not retried as well."""
    job = job_record(store, job_id)
    failed = failed_ancestors(store, job_id, _MAX_NAMED) if job.failed_parents else []
    if job.state is not JobState.FINISHED or retried >= set(failed):
        return None
    return RequestAnswer(AnswerCode.PARENT_FAILED, parent=failed[0])


def refused_answer(store: Store, job_id: int, why: RequestAnswer) -> Answer:
    """Returns the answer for a refusal. If a parent failed, it names the jobs that must be retried."""
    if why.parent is None:
        return Answer(job_id, AnswerKind.REFUSED, why)
    roots = tuple(failed_ancestors(store, job_id, _MAX_NAMED))
    is_skipped = job_record(store, job_id).outcome is Outcome.SKIPPED
    return Answer(job_id, AnswerKind.REFUSED, why, failed_ancestors=roots, is_skipped=is_skipped)


def observed(store: Store, job: JobRecord) -> JobRecord:
    """Returns a job in the state that the next round records."""
    if job.state not in ACTIVE:
        return job
    from gpu_scheduler.app.without_scheduler import observed_job

    return observed_job(store, job)


def predicted_state(state: JobState, verbs: Iterable[str]) -> JobState:
    """Returns a job's state after these requests, in this order. A verb that does not apply is ignored."""
    for verb in verbs:
        if verb in _EFFECTS and state in ACCEPTED_STATES[verb]:
            state = _EFFECTS[verb]
    return state
