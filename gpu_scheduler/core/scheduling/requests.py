"""Answers each request from a front end once, with actions or with the reason for refusing it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_scheduler.core.model.attempt_status import StopRequest
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.actions import (
    Action,
    AnswerRequest,
    ClearFinished,
    EndScheduler,
    RecordStop,
    SetPaused,
    SetQueuePositions,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Facts
from gpu_scheduler.core.scheduling.job_requests import (
    JOB_VERBS,
    ActionsAndAnswer,
    answer_job_request,
    done,
)
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended
from gpu_scheduler.core.scheduling.recovery import recovery

#: Marks a round that already changes the dependencies of a job.
_PARENTS = "parents"
#: The requests that queue a finished job again.
_QUEUEING = frozenset({"retry", "requeue", "resume_job"})
#: Those of them that are refused if the job would be skipped again.
_BY_USER = frozenset({"retry", "resume_job"})


def answer_requests(facts: Facts) -> list[Action]:
    """Returns the actions for every open request, in order. Each request's last action is its answer."""
    actions: list[Action] = []
    touched: set[str] = set()
    queued_again = {request.target for request in facts.requests if request.verb in _QUEUEING}
    # Such a retry may queue a job because of which the failed parent of another one was only skipped.
    ancestors_change = facts.has_unsettled_dependencies or any(
        request.verb in _QUEUEING and not _failed_parent(request, facts) for request in facts.requests
    )
    for request in facts.requests:
        if request.verb == "stop" and request.args.get("jobs") and _live_attempts(facts):
            # The request stays open until no job is live. Until then, no job is placed (see `is_ending`).
            actions += _cancel_all(facts, request.args)
            continue
        # A second request for the same job waits until the effect of the first one is in the store. So does
        # the retry of a job whose failed parent is queued again, whichever was requested first.
        changed = _changed_by(request, facts)
        parent = _failed_parent(request, facts)
        waits = (
            _waits_for_end(request, facts)
            or not touched.isdisjoint(changed | {parent})
            or parent in queued_again
            or (ancestors_change and bool(parent) and not _is_skipped(request, facts))
        )
        touched |= changed
        if waits:
            continue
        changes, answer = _carry_out_request(request, facts)
        actions += [*changes, AnswerRequest(request.request_id, answer)]
    return actions


def is_ending(facts: Facts) -> bool:
    """Returns whether the scheduler has been asked to end, so that it starts no more jobs."""
    return any(request.verb == "stop" for request in facts.requests)


def _changed_by(request: Request, facts: Facts) -> set[str]:
    """Returns the targets that a request may change, so that no other request for them shares its round."""
    if request.verb not in JOB_VERBS:
        return set()
    if not request.target:
        return {str(job.job_id) for job in facts.interrupted} if request.verb == "recover" else set()
    # A cycle is found in the store, so the dependencies of another job must be recorded first.
    return {request.target, _PARENTS} if "parents" in request.args else {request.target}


def _waits_for_end(request: Request, facts: Facts) -> bool:
    """Returns whether a request waits until the store has the end of an attempt.

    The user may have seen this end already, and so asks for a change of the job in the state that follows.
    """
    is_for_all = request.verb == "recover" and not request.target
    if not is_for_all and request.verb not in JOB_VERBS:
        return False
    # A queued adopted process already runs. As soon as a runner watches it, it is a running job.
    if request.target in {str(job.job_id) for job in facts.adopted_jobs}:
        return True
    return any(
        attempt.state.is_open
        and (is_for_all or request.target == str(attempt.job_id))
        and has_ended(attempt, facts.now)
        for attempt in facts.attempts
    )


def _is_skipped(request: Request, facts: Facts) -> bool:
    return facts.jobs[int(request.target)].outcome is Outcome.SKIPPED


def _failed_parent(request: Request, facts: Facts) -> str:
    job = facts.jobs.get(int(request.target)) if request.verb in _BY_USER else None
    return "" if job is None or job.failed_parent is None else str(job.failed_parent)


def _live_attempts(facts: Facts) -> list[Attempt]:
    """Returns the attempts that `stop --jobs` ends, which spares adopted processes."""
    return [one for one in facts.attempts if one.state.holds_gpus and one.watched_pid is None]


def _cancel_all(facts: Facts, args: Any) -> list[Action]:
    grace = args.get("grace_s")
    grace_s = facts.settings.grace_s if grace is None else float(grace)
    stop = StopRequest("cancelled", grace_s)
    live = [attempt for attempt in _live_attempts(facts) if attempt.state.is_open]
    return [
        RecordStop(attempt.job_id, stop)
        for attempt in live
        if attempt.stop_request is None or attempt.stop_request.cause != stop.cause
    ]


def _carry_out_request(request: Request, facts: Facts) -> ActionsAndAnswer:
    if request.verb == "stop":
        return done(AnswerCode.ENDING, EndScheduler())
    if request.verb in ("pause", "resume"):
        paused = request.verb == "pause"
        change = SetPaused(request.target, paused, request.args.get("cause"))
        used = {gpu.uuid for gpu in facts.gpus if not gpu.paused and gpu.suspicion is None}
        resumed = AnswerCode.NOT_PAUSED if request.target in used else AnswerCode.RESUMED
        return done(AnswerCode.PAUSED if paused else resumed, change)
    if request.verb == "places":
        positions = tuple((job, position) for job, position in request.args["places"])
        return done(AnswerCode.POSITIONS_SET, SetQueuePositions(positions))
    if not request.target:
        return _recover_all(facts) if request.verb == "recover" else _clear_all(facts)
    job = facts.jobs.get(int(request.target))
    if job is None:
        return done(AnswerCode.NO_SUCH_JOB)
    if request.request_id == facts.cyclic_request:
        return [], RequestAnswer(AnswerCode.CYCLE)
    job = replace(job, withdrawn_stop=_withdrawn_stop(job.job_id, facts))
    return answer_job_request(request.verb, job, request.args, facts.settings)


def _withdrawn_stop(job_id: int, facts: Facts) -> str | None:
    """Returns the id of the preemption that the runner of this job has withdrawn last; None if it has not."""
    withdrawn = (one.status.withdrawn for one in facts.attempts if one.job_id == job_id and one.state.is_open)
    return next((stop.stop_id for stop in withdrawn if stop is not None), None)


def _recover_all(facts: Facts) -> ActionsAndAnswer:
    actions: list[Action] = [recovery(job) for job in facts.interrupted]
    return actions, RequestAnswer(AnswerCode.RECOVERED, jobs=tuple(job.job_id for job in facts.interrupted))


def _clear_all(facts: Facts) -> ActionsAndAnswer:
    return [ClearFinished()], RequestAnswer(AnswerCode.CLEARED, count=facts.finished_count)
