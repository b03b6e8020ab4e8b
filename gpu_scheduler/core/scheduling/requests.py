"""Answers each request from a front end once, with actions or with the reason for refusing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import (
    FLAGS,
    RESTART_FIELDS,
    format_attribute,
    format_change,
    is_unset,
    key_of,
)
from gpu_scheduler.core.model.attempt import ActiveAttempt
from gpu_scheduler.core.model.attempt_status import Checkpoint, StopRequest
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import REFERENCES, Dependency
from gpu_scheduler.core.model.request import QUEUEING, Request
from gpu_scheduler.core.model.request_answer import (
    AnswerCode,
    RequestAnswer,
    not_interrupted,
    refusal_to_resume,
    unfinished_work,
    wrong_state,
)
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
    RecordStop,
    RequeueJob,
    SetAttribute,
    SetConfirmed,
    SetDependencies,
    SetPaused,
    SetQueuePositions,
)
from gpu_scheduler.core.scheduling.attempt_end import recovery
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended
from gpu_scheduler.core.scheduling.settings import Settings

# Answers the requests about single jobs: each function returns the changes and the answer for one verb.


ActionsAndAnswer = tuple[list[Action], RequestAnswer]


def answer_job_request(verb: str, job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    """Returns the changes that a request about this job makes, and its answer."""
    return _JOB_REQUESTS[verb](job, args, settings)


def done(code: AnswerCode, *actions: Action) -> ActionsAndAnswer:
    """Returns these changes with an answer that has no other data."""
    return list(actions), RequestAnswer(code)


def _cancel(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    grace = args.get("grace_s")
    if job.is_waiting:
        kind = ReasonKind.CANCELLED_BY_LINE if args.get("line") else ReasonKind.CANCELLED_BY_USER
        kind = ReasonKind.GIVEN_BACK if args.get("given_back") else kind
        return done(AnswerCode.CANCELLED, FinishJob(job.id, Outcome.CANCELLED, StateReason(kind)))
    if job.state in ACTIVE:
        grace_s = settings.grace_s if grace is None else float(grace)
        return done(AnswerCode.STOPPING, RecordStop(job.id, StopRequest("cancelled", grace_s)))
    return [], RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=job.outcome)


def _preempt(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    stop = StopRequest(
        "preempted",
        float(args["grace_s"]),
        args["on_timeout"],
        args["stop_id"],
        job.preempt_signal,
    )
    if job.state not in ACTIVE:
        return _refusal("preempt", job)
    if not stop.may_replace(job.stop):
        return [], RequestAnswer(AnswerCode.BEING_CANCELLED)
    return done(AnswerCode.STOPPING, RecordStop(job.id, stop.combined_with(job.stop)))


def _retry(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.FINISHED):
        file, changes = args.get("added_to"), args.get("changes", ())
        kind = ReasonKind.LINE_ADDED_AGAIN if file else ReasonKind.RETRIED_BY_USER
        actions = [action for change in changes for action in _change(job, change)]
        actions.append(RequeueJob(job.id, StateReason(kind, subject=file)))
        changed = " ".join(format_change(change["name"], change["value"]) for change in changes)
        return actions, RequestAnswer(AnswerCode.QUEUED, attribute=changed)
    return _refusal("retry", job)


def _retry_unless_skipped(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    has_same_parents = "parents" not in args
    if job.state is JobState.FINISHED and job.failed_parent is not None and has_same_parents:
        return [], RequestAnswer(AnswerCode.PARENT_FAILED, parent=job.failed_parent)
    return _retry(job, args, settings)


def _resume(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    completed = bool(args.get("completed"))
    refusal = refusal_to_resume(job.state, job.outcome, job.failed_parent, completed=completed)
    if refusal is not None:
        return [], refusal
    checkpoint = Checkpoint.from_values(args["checkpoint"])
    reason = StateReason(ReasonKind.RESUMED_BY_USER, subject=checkpoint.path)
    requeue = RequeueJob(job.id, reason, checkpoint=checkpoint, min_vram_mib=args.get("min_vram_mib"))
    return done(AnswerCode.QUEUED, requeue)


def _hold(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.QUEUED:
        return done(AnswerCode.HELD, HoldJob(job.id, "user", StateReason(ReasonKind.HELD_BY_USER)))
    return _refusal("hold", job)


def _release(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.has_unfinished_work:
        return [], unfinished_work(job.held_by)
    if job.state is JobState.HELD:
        return done(AnswerCode.RELEASED, _requeue_as_before(job, ReasonKind.RELEASED_BY_USER))
    return _refusal("release", job)


def _requeue_as_before(job: Job, kind: ReasonKind) -> RequeueJob:
    """Returns the action that queues a held or skipped job again as it was queued before."""
    return RequeueJob(job.id, StateReason(kind), keeps_checkpoint=True)


def _recover(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_interrupted:
        return done(AnswerCode.QUEUED, recovery(job))
    return [], not_interrupted(job.state)


def _clear(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.FINISHED:
        return done(AnswerCode.CLEARED, ClearJob(job.id))
    return _refusal("clear", job)


def _line_removed(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_waiting:
        reason = StateReason(ReasonKind.LINE_REMOVED)
        return done(AnswerCode.CANCELLED, FinishJob(job.id, Outcome.CANCELLED, reason))
    return _refusal("line_removed", job)


def _set(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    name, value = args["name"], args["value"]
    # Attributes from a finished job's line, and these changes, apply when the job is queued again.
    is_of_restart = "parents" in args or name in RESTART_FIELDS
    applies_later = is_of_restart or (args.get("line") and name not in FLAGS)
    later = job.state is JobState.FINISHED and applies_later
    if not job.is_waiting and not later:
        return _refusal("set", job)
    actions = _change(job, args)
    if name == "hold" and value and job.state is not JobState.HELD:
        if job.outcome is Outcome.SKIPPED:  # a held job is not skipped
            actions.append(_requeue_as_before(job, ReasonKind.HELD_BY_LINE))
        actions.append(HoldJob(job.id, "line", StateReason(ReasonKind.HELD_BY_LINE)))
    elif name == "hold" and not value and job.held_by == "line":
        actions.append(_requeue_as_before(job, ReasonKind.RELEASED_BY_LINE))
    elif name == "cancel" and value:
        actions.append(FinishJob(job.id, Outcome.CANCELLED, StateReason(ReasonKind.CANCELLED_BY_LINE)))
    if is_unset(value):
        return actions, RequestAnswer(AnswerCode.ATTRIBUTE_REMOVED, attribute=key_of(name))
    return actions, RequestAnswer(AnswerCode.ATTRIBUTE_SET, attribute=format_attribute(name, value))


def _confirm(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.QUEUED):
        return done(AnswerCode.CONFIRMED, SetConfirmed(job.id, confirmed=True))
    return _refusal("confirm", job)


def _unconfirm(job: Job, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.QUEUED):
        return done(AnswerCode.UNCONFIRMED, SetConfirmed(job.id, confirmed=False))
    return _refusal("unconfirm", job)


def _change(job: Job, change: Any) -> list[Action]:
    """Returns the actions that change one attribute. change: the arguments of a `set` request."""
    name, parents = change["name"], change.get("parents")
    actions: list[Action] = [SetAttribute(job.id, name, change["value"])]
    if parents is not None:
        wanted = tuple(Dependency(parent, REFERENCES[name], reference) for parent, reference in parents)
        actions.append(SetDependencies(job.id, REFERENCES[name], wanted))
    return actions


def _refusal(verb: str, job: Job) -> ActionsAndAnswer:
    return [], wrong_state(verb, job.state)


#: The function for each verb.
_JOB_REQUESTS: Mapping[str, Callable[[Job, Any, Settings], ActionsAndAnswer]] = {
    "cancel": _cancel,
    "preempt": _preempt,
    "resume_job": _resume,
    "retry": _retry_unless_skipped,
    "requeue": _retry,
    "hold": _hold,
    "release": _release,
    "line_removed": _line_removed,
    "recover": _recover,
    "clear": _clear,
    "set": _set,
    "confirm": _confirm,
    "unconfirm": _unconfirm,
}

#: The verbs of the requests about single jobs.
JOB_VERBS = frozenset(_JOB_REQUESTS)

#: Marks a round that already changes the dependencies of a job.
_PARENTS = "parents"
#: The requests that queue a finished job again and are refused if the job would be skipped again.
_BY_USER = frozenset({"retry", "resume_job"})


def answer_requests(facts: Facts) -> list[Action]:
    """Returns the actions for every open request, in order. Each request's last action is its answer."""
    actions: list[Action] = []
    touched: set[str] = set()
    queued_again = {request.target for request in facts.requests if request.verb in QUEUEING}
    # Such a retry may queue a job because of which the failed parent of another one was only skipped.
    ancestors_change = facts.has_unsettled_dependencies or any(
        request.verb in QUEUEING and not _failed_parent(request, facts) for request in facts.requests
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
        return {str(job.id) for job in facts.interrupted} if request.verb == "recover" else set()
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
    if request.target in {str(job.id) for job in facts.adopted_jobs}:
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


def _live_attempts(facts: Facts) -> list[ActiveAttempt]:
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
    if request.verb == "preempt" and request.args["stop_id"] == _withdrawn_stop(job.id, facts):
        return done(AnswerCode.WITHDRAWN)
    return answer_job_request(request.verb, job, request.args, facts.settings)


def _withdrawn_stop(job_id: int, facts: Facts) -> str | None:
    """Returns the id of the preemption that the runner of this job has withdrawn last; None if it has not."""
    withdrawn = (one.status.withdrawn for one in facts.attempts if one.job_id == job_id and one.state.is_open)
    return next((stop.stop_id for stop in withdrawn if stop is not None), None)


def _recover_all(facts: Facts) -> ActionsAndAnswer:
    actions: list[Action] = [recovery(job) for job in facts.interrupted]
    return actions, RequestAnswer(AnswerCode.RECOVERED, jobs=tuple(job.id for job in facts.interrupted))


def _clear_all(facts: Facts) -> ActionsAndAnswer:
    return [ClearFinished()], RequestAnswer(AnswerCode.CLEARED, count=facts.finished_count)
