"""Answers each request from a front end once, with actions or with the reason for refusing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import FLAGS, format_attribute, is_unset, key_of
from gpu_scheduler.core.model.dependency import Dependency, DependencyKind
from gpu_scheduler.core.model.request import JobFact, Request
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer, not_interrupted, wrong_state
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.scheduling.actions import (
    Action,
    AnswerRequest,
    ClearFinished,
    ClearJob,
    EndScheduler,
    FinishJob,
    HoldJob,
    RecordCancel,
    RequeueJob,
    SetAttribute,
    SetDependencies,
    SetPaused,
    SetQueuePositions,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Facts
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended
from gpu_scheduler.core.scheduling.settings import Settings

#: Marks a round that already changes the dependencies of a job.
_PARENTS = "parents"
#: The requests that queue a finished job again.
_QUEUEING = frozenset({"retry", "requeue"})

ActionsAndAnswer = tuple[list[Action], RequestAnswer]


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
    if request.verb not in _JOB_REQUESTS:
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
    if not is_for_all and request.verb not in _JOB_REQUESTS:
        return False
    return any(
        attempt.state.is_open
        and (is_for_all or request.target == str(attempt.job_id))
        and has_ended(attempt, facts.now)
        for attempt in facts.attempts
    )


def _is_skipped(request: Request, facts: Facts) -> bool:
    return facts.jobs[int(request.target)].outcome is Outcome.SKIPPED


def _failed_parent(request: Request, facts: Facts) -> str:
    job = facts.jobs.get(int(request.target)) if request.verb == "retry" else None
    return "" if job is None or job.failed_parent is None else str(job.failed_parent)


def _live_attempts(facts: Facts) -> list[Attempt]:
    return [attempt for attempt in facts.attempts if attempt.state.holds_gpus]


def _cancel_all(facts: Facts, args: Any) -> list[Action]:
    grace = args.get("grace_s")
    grace_s = facts.settings.grace_s if grace is None else float(grace)
    waiting = [a for a in _live_attempts(facts) if a.state.is_open and a.cancel is None]
    return [RecordCancel(attempt.job_id, "cancelled", grace_s) for attempt in waiting]


def _carry_out_request(request: Request, facts: Facts) -> ActionsAndAnswer:
    if request.verb == "stop":
        return _done(AnswerCode.ENDING, EndScheduler())
    if request.verb in ("pause", "resume"):
        paused = request.verb == "pause"
        change = SetPaused(request.target, paused, request.args.get("cause"))
        return _done(AnswerCode.PAUSED if paused else AnswerCode.RESUMED, change)
    if request.verb == "places":
        positions = tuple((job, position) for job, position in request.args["places"])
        return _done(AnswerCode.POSITIONS_SET, SetQueuePositions(positions))
    if not request.target:
        return _recover_all(facts) if request.verb == "recover" else _clear_all(facts)
    job = facts.jobs.get(int(request.target))
    if job is None:
        return _done(AnswerCode.NO_SUCH_JOB)
    if request.request_id == facts.cyclic_request:
        return [], RequestAnswer(AnswerCode.CYCLE)
    return _JOB_REQUESTS[request.verb](job, request.args, facts.settings)


def _cancel(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    grace = args.get("grace_s")
    if job.is_waiting:
        kind = ReasonKind.CANCELLED_BY_LINE if args.get("line") else ReasonKind.CANCELLED_BY_USER
        return _done(AnswerCode.CANCELLED, FinishJob(job.job_id, Outcome.CANCELLED, StateReason(kind)))
    if job.state in ACTIVE:
        grace_s = settings.grace_s if grace is None else float(grace)
        return _done(AnswerCode.STOPPING, RecordCancel(job.job_id, "cancelled", grace_s))
    return [], RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=job.outcome)


def _retry(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.FINISHED):
        file = args.get("added_to")
        kind = ReasonKind.LINE_ADDED_AGAIN if file else ReasonKind.RETRIED_BY_USER
        return _done(AnswerCode.QUEUED, RequeueJob(job.job_id, StateReason(kind, subject=file)))
    return _refusal("retry", job)


def _retry_unless_skipped(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.FINISHED and job.failed_parent is not None:
        return [], RequestAnswer(AnswerCode.PARENT_FAILED, parent=job.failed_parent)
    return _retry(job, args, settings)


def _hold(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.QUEUED:
        return _done(AnswerCode.HELD, HoldJob(job.job_id, "user", StateReason(ReasonKind.HELD_BY_USER)))
    return _refusal("hold", job)


def _release(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.HELD:
        return _done(AnswerCode.RELEASED, RequeueJob(job.job_id, StateReason(ReasonKind.RELEASED_BY_USER)))
    return _refusal("release", job)


def _recover_all(facts: Facts) -> ActionsAndAnswer:
    reason = StateReason(ReasonKind.RECOVERED)
    actions: list[Action] = [RequeueJob(job.job_id, reason) for job in facts.interrupted]
    return actions, RequestAnswer(AnswerCode.RECOVERED, jobs=tuple(job.job_id for job in facts.interrupted))


def _recover(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_interrupted:
        return _done(AnswerCode.QUEUED, RequeueJob(job.job_id, StateReason(ReasonKind.RECOVERED)))
    return [], not_interrupted(job.state)


def _clear_all(facts: Facts) -> ActionsAndAnswer:
    return [ClearFinished()], RequestAnswer(AnswerCode.CLEARED, count=facts.finished_count)


def _clear(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.FINISHED:
        return _done(AnswerCode.CLEARED, ClearJob(job.job_id))
    return _refusal("clear", job)


def _line_removed(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_waiting:
        reason = StateReason(ReasonKind.LINE_REMOVED)
        return _done(AnswerCode.CANCELLED, FinishJob(job.job_id, Outcome.CANCELLED, reason))
    return _refusal("line_removed", job)


def _set(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    name, value = args["name"], args["value"]
    # Attributes from a finished job's line, and dependencies, apply when the job is queued again.
    applies_later = "parents" in args or (args.get("line") and name not in FLAGS)
    later = job.state is JobState.FINISHED and applies_later
    if not job.is_waiting and not later:
        return _refusal("set", job)
    actions: list[Action] = [SetAttribute(job.job_id, name, value)]
    if "parents" in args:
        kind = DependencyKind.COMPLETED if name == "after" else DependencyKind.FINISHED
        wanted = tuple(Dependency(parent, kind, reference) for parent, reference in args["parents"])
        actions.append(SetDependencies(job.job_id, kind, wanted))
    if name == "hold" and value and job.state is not JobState.HELD:
        if job.outcome is Outcome.SKIPPED:  # a held job is not skipped
            actions.append(RequeueJob(job.job_id, StateReason(ReasonKind.HELD_BY_LINE)))
        actions.append(HoldJob(job.job_id, "line", StateReason(ReasonKind.HELD_BY_LINE)))
    elif name == "hold" and not value and job.held_by == "line":
        actions.append(RequeueJob(job.job_id, StateReason(ReasonKind.RELEASED_BY_LINE)))
    elif name == "cancel" and value:
        actions.append(FinishJob(job.job_id, Outcome.CANCELLED, StateReason(ReasonKind.CANCELLED_BY_LINE)))
    if is_unset(value):
        return actions, RequestAnswer(AnswerCode.ATTRIBUTE_REMOVED, attribute=key_of(name))
    return actions, RequestAnswer(AnswerCode.ATTRIBUTE_SET, attribute=format_attribute(name, value))


def _done(code: AnswerCode, *actions: Action) -> ActionsAndAnswer:
    return list(actions), RequestAnswer(code)


def _refusal(verb: str, job: JobFact) -> ActionsAndAnswer:
    return [], wrong_state(verb, job.state)


_JOB_REQUESTS: dict[str, Callable[[JobFact, Any, Settings], ActionsAndAnswer]] = {
    "cancel": _cancel,
    "retry": _retry_unless_skipped,
    "requeue": _retry,
    "hold": _hold,
    "release": _release,
    "line_removed": _line_removed,
    "recover": _recover,
    "clear": _clear,
    "set": _set,
}
