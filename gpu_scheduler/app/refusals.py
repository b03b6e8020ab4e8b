"""Decides which requests for jobs are refused before they are recorded. All others are decided by a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_scheduler.app.answers import Answer, AnswerKind
from gpu_scheduler.app.job_refs import job_record
from gpu_scheduler.core.model.request import UNFINISHED
from gpu_scheduler.core.model.request_answer import ACCEPTED_STATES, AnswerCode, RequestAnswer, wrong_state
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.store.dependencies import failed_ancestors, is_ancestor
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: Maximum number of jobs that the refusal of a retry names.
_MAX_NAMED = 5
#: The outcomes of the jobs of a group that `retry` queues again.
_RETRIED = FAILED | {Outcome.CANCELLED, Outcome.INTERRUPTED, Outcome.PREEMPTED}


def early_refusal(store: Store, verb: str, job_id: int, args: Mapping[str, Any]) -> RequestAnswer | None:
    """Returns why a request is not even recorded; None if a round decides. args: those of the request."""
    job = store.job(job_id)
    if job is None:
        return RequestAnswer(AnswerCode.NO_SUCH_JOB)
    has_command = job.spec.can_start or any(one["name"] == "command" for one in args.get("changes", ()))
    if verb in ("retry", "resume_job", "recover") and not has_command:
        return RequestAnswer(AnswerCode.NO_COMMAND)
    if job.adopted is not None and verb in ("hold", "set"):
        # The scheduler watches the process before it reads requests, so the request would have no effect.
        return RequestAnswer(AnswerCode.NOT_WATCHED, verb=verb)
    return _would_wait_for_itself(store, job_id, [args])


def refusal_of_changes(
    store: Store, job_id: int, changes: Sequence[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns why no change of a job is requested. Otherwise, a round would make only some of them."""
    from gpu_scheduler.core.jobsfile.attributes import RESTART_FIELDS

    is_finished = job_record(store, job_id).state is JobState.FINISHED
    if is_finished and not all("parents" in args or args["name"] in RESTART_FIELDS for args in changes):
        return wrong_state("set", JobState.FINISHED)
    return _would_wait_for_itself(store, job_id, changes) or early_refusal(store, "set", job_id, {})


def _would_wait_for_itself(
    store: Store, job_id: int, changes: Iterable[Mapping[str, Any]]
) -> RequestAnswer | None:
    """Returns the refusal if a change would make a job wait for itself, directly or indirectly."""
    parents = [[parent for parent, _ in args.get("parents", ())] for args in changes]
    return (
        RequestAnswer(AnswerCode.CYCLE) if any(is_ancestor(store, job_id, one) for one in parents) else None
    )


def concerns(verb: str, job: JobRecord) -> bool:
    """Returns whether a request for a group of jobs means this one, which its state allows."""
    if verb == "cancel":
        return job.state is not JobState.FINISHED or job.outcome is Outcome.SKIPPED
    if verb == "recover" or (verb == "retry" and job.is_interrupted):
        return job.is_interrupted
    if verb == "retry":
        return job.outcome in _RETRIED
    if verb == "release" and job.held_by in UNFINISHED:
        return False
    return job.state in ACCEPTED_STATES[verb]


def refused_answer(store: Store, job_id: int, why: RequestAnswer) -> Answer:
    """Returns the answer for a refusal.

    If a parent failed, it names the jobs that must be retried; if the job has finished, it says how.
    """
    if why.code is AnswerCode.ALREADY_FINISHED:
        job = job_record(store, job_id)
        why = replace(why, exit_code=job.exit_code, signal=job.signal)
    if why.parent is None:
        return Answer(job_id, AnswerKind.REFUSED, why)
    roots = tuple(failed_ancestors(store, job_id, _MAX_NAMED))
    is_skipped = job_record(store, job_id).outcome is Outcome.SKIPPED
    return Answer(job_id, AnswerKind.REFUSED, why, failed_ancestors=roots, is_skipped=is_skipped)
