"""Answers the requests about single jobs: each function returns the changes and the answer for one verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_scheduler.core.jobsfile.attribute_changes import format_change
from gpu_scheduler.core.jobsfile.attributes import FLAGS, format_attribute, is_unset, key_of
from gpu_scheduler.core.model.attempt_status import StopRequest
from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.core.model.dependency import Dependency, DependencyKind
from gpu_scheduler.core.model.job_spec import RESTART_FIELDS
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.request_answer import (
    AnswerCode,
    RequestAnswer,
    not_interrupted,
    unfinished_work,
    wrong_state,
)
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.scheduling.actions import (
    Action,
    ClearJob,
    FinishJob,
    HoldJob,
    RecordStop,
    RequeueJob,
    SetAttribute,
    SetConfirmed,
    SetDependencies,
)
from gpu_scheduler.core.scheduling.recovery import recovery
from gpu_scheduler.core.scheduling.settings import Settings

ActionsAndAnswer = tuple[list[Action], RequestAnswer]


def answer_job_request(verb: str, job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    """Returns the changes that a request about this job makes, and its answer."""
    return _JOB_REQUESTS[verb](job, args, settings)


def done(code: AnswerCode, *actions: Action) -> ActionsAndAnswer:
    """Returns these changes with an answer that has no other data."""
    return list(actions), RequestAnswer(code)


def _cancel(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    grace = args.get("grace_s")
    if job.is_waiting:
        kind = ReasonKind.CANCELLED_BY_LINE if args.get("line") else ReasonKind.CANCELLED_BY_USER
        kind = ReasonKind.GIVEN_BACK if args.get("given_back") else kind
        return done(AnswerCode.CANCELLED, FinishJob(job.job_id, Outcome.CANCELLED, StateReason(kind)))
    if job.state in ACTIVE:
        grace_s = settings.grace_s if grace is None else float(grace)
        return done(AnswerCode.STOPPING, RecordStop(job.job_id, StopRequest("cancelled", grace_s)))
    return [], RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=job.outcome)


def _preempt(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    stop = StopRequest(
        "preempted", float(args["grace_s"]), args["on_timeout"], args["stop_id"], job.preempt_signal
    )
    if job.state not in ACTIVE:
        return _refusal("preempt", job)
    if stop.stop_id == job.withdrawn_stop:
        return done(AnswerCode.WITHDRAWN)
    if not stop.may_replace(job.open_stop):
        return [], RequestAnswer(AnswerCode.BEING_CANCELLED)
    return done(AnswerCode.STOPPING, RecordStop(job.job_id, stop.combined_with(job.open_stop)))


def _retry(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.FINISHED):
        file, changes = args.get("added_to"), args.get("changes", ())
        kind = ReasonKind.LINE_ADDED_AGAIN if file else ReasonKind.RETRIED_BY_USER
        actions = [action for change in changes for action in _change(job, change)]
        actions.append(RequeueJob(job.job_id, StateReason(kind, subject=file)))
        changed = " ".join(format_change(change["name"], change["value"]) for change in changes)
        return actions, RequestAnswer(AnswerCode.QUEUED, attribute=changed)
    return _refusal("retry", job)


def _retry_unless_skipped(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    has_same_parents = "parents" not in args
    if job.state is JobState.FINISHED and job.failed_parent is not None and has_same_parents:
        return [], RequestAnswer(AnswerCode.PARENT_FAILED, parent=job.failed_parent)
    return _retry(job, args, settings)


def _resume(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state not in (JobState.HELD, JobState.FINISHED):
        return _refusal("resume_job", job)
    if job.failed_parent is not None and job.state is JobState.FINISHED:
        return [], RequestAnswer(AnswerCode.PARENT_FAILED, parent=job.failed_parent)
    if job.outcome is Outcome.COMPLETED and not args.get("completed"):
        return [], RequestAnswer(AnswerCode.ALREADY_COMPLETED)
    checkpoint = Checkpoint.from_values(args["checkpoint"])
    reason = StateReason(ReasonKind.RESUMED_BY_USER, subject=checkpoint.path)
    requeue = RequeueJob(job.job_id, reason, checkpoint=checkpoint, min_vram_mib=args.get("min_vram_mib"))
    return done(AnswerCode.QUEUED, requeue)


def _hold(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.QUEUED:
        return done(AnswerCode.HELD, HoldJob(job.job_id, "user", StateReason(ReasonKind.HELD_BY_USER)))
    return _refusal("hold", job)


def _release(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.has_unfinished_work:
        return [], unfinished_work(job.held_by)
    if job.state is JobState.HELD:
        return done(AnswerCode.RELEASED, _requeue_as_before(job, ReasonKind.RELEASED_BY_USER))
    return _refusal("release", job)


def _requeue_as_before(job: JobFact, kind: ReasonKind) -> RequeueJob:
    """Returns the action that queues a held or skipped job again as it was queued before."""
    return RequeueJob(job.job_id, StateReason(kind), keeps_checkpoint=True)


def _recover(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_interrupted:
        return done(AnswerCode.QUEUED, recovery(job))
    return [], not_interrupted(job.state)


def _clear(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state is JobState.FINISHED:
        return done(AnswerCode.CLEARED, ClearJob(job.job_id))
    return _refusal("clear", job)


def _line_removed(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.is_waiting:
        reason = StateReason(ReasonKind.LINE_REMOVED)
        return done(AnswerCode.CANCELLED, FinishJob(job.job_id, Outcome.CANCELLED, reason))
    return _refusal("line_removed", job)


def _set(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
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
        actions.append(HoldJob(job.job_id, "line", StateReason(ReasonKind.HELD_BY_LINE)))
    elif name == "hold" and not value and job.held_by == "line":
        actions.append(_requeue_as_before(job, ReasonKind.RELEASED_BY_LINE))
    elif name == "cancel" and value:
        actions.append(FinishJob(job.job_id, Outcome.CANCELLED, StateReason(ReasonKind.CANCELLED_BY_LINE)))
    if is_unset(value):
        return actions, RequestAnswer(AnswerCode.ATTRIBUTE_REMOVED, attribute=key_of(name))
    return actions, RequestAnswer(AnswerCode.ATTRIBUTE_SET, attribute=format_attribute(name, value))


def _confirm(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.QUEUED):
        return done(AnswerCode.CONFIRMED, SetConfirmed(job.job_id, confirmed=True))
    return _refusal("confirm", job)


def _unconfirm(job: JobFact, args: Any, settings: Settings) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.QUEUED):
        return done(AnswerCode.UNCONFIRMED, SetConfirmed(job.job_id, confirmed=False))
    return _refusal("unconfirm", job)


def _change(job: JobFact, change: Any) -> list[Action]:
    """Returns the actions that change one attribute. change: the arguments of a `set` request."""
    name, parents = change["name"], change.get("parents")
    actions: list[Action] = [SetAttribute(job.job_id, name, change["value"])]
    if parents is not None:
        kind = DependencyKind.COMPLETED if name == "after" else DependencyKind.FINISHED
        wanted = tuple(Dependency(parent, kind, reference) for parent, reference in parents)
        actions.append(SetDependencies(job.job_id, kind, wanted))
    return actions


def _refusal(verb: str, job: JobFact) -> ActionsAndAnswer:
    return [], wrong_state(verb, job.state)


#: The function for each verb.
_JOB_REQUESTS: Mapping[str, Callable[[JobFact, Any, Settings], ActionsAndAnswer]] = {
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
