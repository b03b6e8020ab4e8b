"""Answers each request from a front end once, with actions or with the reason for refusing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.attributes import (
    FLAGS,
    RESTART_FIELDS,
    format_attribute,
    format_change,
    is_unset,
    key_of,
)
from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Checkpoint, Job, StopRequest
from gpu_scheduler.core.model.job_spec import REFERENCES, Dependency
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.request import (
    QUEUEING,
    AnswerCode,
    Request,
    RequestAnswer,
    not_interrupted,
    refusal_to_resume,
    wrong_state,
)
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.attempt_end import recovery
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended
from gpu_scheduler.core.scheduling.settings import Settings

# Answers the requests about single jobs: each function returns the changes and the answer for one verb.


ActionsAndAnswer = tuple[list[act.Action], RequestAnswer]


def done(code: AnswerCode, *actions: act.Action) -> ActionsAndAnswer:
    """Returns these changes with an answer that has no other data."""
    return list(actions), RequestAnswer(code)


def _cancel(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    grace = args.get("grace_s")
    if job.is_waiting:
        kind = ReasonKind.CANCELLED_BY_LINE if args.get("line") else ReasonKind.CANCELLED_BY_USER
        kind = ReasonKind.GIVEN_BACK if args.get("given_back") else kind
        return done(AnswerCode.CANCELLED, _cancelled(job, kind, now))
    if job.state in ACTIVE:
        grace_s = settings.grace_s if grace is None else float(grace)
        return done(AnswerCode.STOPPING, act.stopped(job, StopRequest("cancelled", grace_s)))
    return [], RequestAnswer(AnswerCode.ALREADY_FINISHED, outcome=job.outcome)


def _cancelled(job: Job, kind: ReasonKind, now: Now) -> act.JobChanged:
    return act.JobChanged(job, job.finished(Outcome.CANCELLED, StateReason(kind), now))


def _preempt(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    stop = StopRequest(
        "preempted", float(args["grace_s"]), args["on_timeout"], args["stop_id"], job.preempt_signal
    )
    if job.state not in ACTIVE:
        return _refusal("preempt", job)
    if not stop.may_replace(job.stop):
        return [], RequestAnswer(AnswerCode.BEING_CANCELLED)
    return done(AnswerCode.STOPPING, act.stopped(job, stop.combined_with(job.stop)))


def _retry(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.state in (JobState.HELD, JobState.FINISHED):
        file, changes = args.get("added_to"), args.get("changes", ())
        kind = ReasonKind.LINE_ADDED_AGAIN if file else ReasonKind.RETRIED_BY_USER
        new = _with_attributes(job, changes).queued_again(now)
        actions: list[act.Action] = [act.JobChanged(job, new, StateReason(kind, subject=file))]
        actions += [one for change in changes for one in _dependencies(job, change)]
        changed = " ".join(format_change(change["name"], change["value"]) for change in changes)
        return actions, RequestAnswer(AnswerCode.QUEUED, attribute=changed)
    return _refusal("retry", job)


def _retry_unless_skipped(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    has_same_parents = "parents" not in args
    if job.state is JobState.FINISHED and job.failed_parent is not None and has_same_parents:
        return [], RequestAnswer(AnswerCode.PARENT_FAILED, parent=job.failed_parent)
    return _retry(job, args, settings, now)


def _resume(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    completed = bool(args.get("completed"))
    refusal = refusal_to_resume(job.state, job.outcome, job.failed_parent, completed=completed)
    if refusal is not None:
        return [], refusal
    checkpoint = Checkpoint.from_values(args["checkpoint"])
    reason = StateReason(ReasonKind.RESUMED_BY_USER, subject=checkpoint.path)
    new = job.queued_again(now, checkpoint=checkpoint)
    if args.get("min_vram_mib") is not None:
        new = replace(new, min_vram_mib=args["min_vram_mib"])
    return done(AnswerCode.QUEUED, act.JobChanged(job, new, reason))


def _hold(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.state is JobState.QUEUED:
        held = job.held("user", StateReason(ReasonKind.HELD_BY_USER))
        return done(AnswerCode.HELD, act.JobChanged(job, held))
    return _refusal("hold", job)


def _release(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.has_unfinished_work:
        return [], RequestAnswer(AnswerCode.UNFINISHED_WORK, outcome=Outcome(job.held_by))
    if job.state is JobState.HELD:
        return done(AnswerCode.RELEASED, _queued_as_before(job, ReasonKind.RELEASED_BY_USER, now))
    return _refusal("release", job)


def _queued_as_before(job: Job, kind: ReasonKind, now: Now) -> act.JobChanged:
    """Returns the change that queues a held or skipped job again as it was queued before."""
    return act.JobChanged(job, job.queued_again(now, keeps=True), StateReason(kind))


def _recover(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.is_interrupted:
        return done(AnswerCode.QUEUED, recovery(job, now))
    return [], not_interrupted(job.state)


def _clear(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.state is JobState.FINISHED:
        cleared_at = now.wall if job.cleared_at is None else job.cleared_at
        return done(AnswerCode.CLEARED, act.JobChanged(job, replace(job, cleared_at=cleared_at)))
    return _refusal("clear", job)


def _line_removed(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    if job.is_waiting:
        return done(AnswerCode.CANCELLED, _cancelled(job, ReasonKind.LINE_REMOVED, now))
    return _refusal("line_removed", job)


def _set(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    name, value = args["name"], args["value"]
    # Attributes from a finished job's line, and these changes, apply when the job is queued again.
    is_of_restart = "parents" in args or name in RESTART_FIELDS
    applies_later = is_of_restart or (args.get("line") and name not in FLAGS)
    later = job.state is JobState.FINISHED and applies_later
    if not job.is_waiting and not later:
        return _refusal("set", job)
    changed = _with_attributes(job, [args])
    actions: list[act.Action] = [act.JobChanged(job, changed), *_dependencies(job, args)]
    if name == "hold" and value and job.state is not JobState.HELD:
        if job.outcome is Outcome.SKIPPED:  # a held job is not skipped
            actions.append(_queued_as_before(changed, ReasonKind.HELD_BY_LINE, now))
            changed = changed.queued_again(now, keeps=True)
        held = changed.held("line", StateReason(ReasonKind.HELD_BY_LINE))
        actions.append(act.JobChanged(changed, held))
    elif name == "hold" and not value and job.held_by == "line":
        actions.append(_queued_as_before(changed, ReasonKind.RELEASED_BY_LINE, now))
    elif name == "cancel" and value:
        actions.append(_cancelled(changed, ReasonKind.CANCELLED_BY_LINE, now))
    if is_unset(value):
        return actions, RequestAnswer(AnswerCode.ATTRIBUTE_REMOVED, attribute=key_of(name))
    return actions, RequestAnswer(AnswerCode.ATTRIBUTE_SET, attribute=format_attribute(name, value))


def _confirm(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    """Lets a job from a Redis queue start."""
    if job.state not in (JobState.HELD, JobState.QUEUED):
        return _refusal("confirm", job)
    is_gated = job.line_wait is not None and job.line_wait.kind is WaitKind.NOT_CONFIRMED
    new = replace(job, source_missing=False, line_wait=None, queued_at=now.wall) if is_gated else job
    return done(AnswerCode.CONFIRMED, act.JobChanged(job, new))


def _unconfirm(job: Job, args: Any, settings: Settings, now: Now) -> ActionsAndAnswer:
    """Keeps a job from a Redis queue from starting. One that was ever started stays confirmed."""
    if job.state not in (JobState.HELD, JobState.QUEUED):
        return _refusal("unconfirm", job)
    wait = WaitReason(WaitKind.NOT_CONFIRMED)
    gated = replace(job, source_missing=True, line_wait=wait, queued_at=now.wall)
    return done(AnswerCode.UNCONFIRMED, act.JobChanged(job, job if job.has_attempt else gated))


def _with_attributes(job: Job, changes: Sequence[Any]) -> Job:
    """Returns the job with changed attributes. changes: the arguments of `set` requests."""
    for change in changes:
        job = job.with_attribute(change["name"], change["value"])
    return job


def _dependencies(job: Job, change: Any) -> list[act.Action]:
    """Returns the action that changes the dependencies of a job; none for other attributes."""
    if change.get("parents") is None:
        return []
    kind = REFERENCES[change["name"]]
    wanted = tuple(Dependency(parent, kind, reference) for parent, reference in change["parents"])
    return [act.SetDependencies(job.id, kind, wanted)]


def _refusal(verb: str, job: Job) -> ActionsAndAnswer:
    return [], wrong_state(verb, job.state)


#: The function for each verb.
_JOB_REQUESTS: Mapping[str, Callable[[Job, Any, Settings, Now], ActionsAndAnswer]] = {
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


def answer_requests(facts: Facts) -> list[act.Action]:
    """Returns the actions for every open request, in order. Each request's last action is its answer."""
    actions: list[act.Action] = []
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
            or (
                ancestors_change
                and bool(parent)
                and facts.jobs[int(request.target)].outcome is not Outcome.SKIPPED
            )
        )
        touched |= changed
        if waits:
            continue
        changes, answer = _carry_out_request(request, facts)
        facts = _after(changes, facts)
        actions += [*changes, act.AnswerRequest(request.request_id, answer)]
    return actions


def _after(changes: Sequence[act.Action], facts: Facts) -> Facts:
    """Returns the facts for the next request, which follows these changes of GPUs or of all finished jobs."""
    for change in changes:
        if isinstance(change, act.GpuChanged):
            gpus, others = (
                tuple(change.new if gpu is change.old else gpu for gpu in some)
                for some in (facts.gpus, facts.other_gpus)
            )
            facts = replace(facts, gpus=gpus, other_gpus=others)
        elif isinstance(change, act.ClearFinished):
            cleared = {
                job_id: replace(job, cleared_at=job.cleared_at or facts.now.wall)
                if job.state is JobState.FINISHED
                else job
                for job_id, job in facts.jobs.items()
            }
            facts = replace(facts, jobs=cleared)
    return facts


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


def _failed_parent(request: Request, facts: Facts) -> str:
    job = facts.jobs.get(int(request.target)) if request.verb in _BY_USER else None
    return "" if job is None or job.failed_parent is None else str(job.failed_parent)


def _live_attempts(facts: Facts) -> list[ActiveAttempt]:
    """Returns the attempts that `stop --jobs` ends, which spares adopted processes."""
    return [one for one in facts.attempts if one.state.holds_gpus and one.watched_pid is None]


def _cancel_all(facts: Facts, args: Any) -> list[act.Action]:
    grace = args.get("grace_s")
    grace_s = facts.settings.grace_s if grace is None else float(grace)
    stop = StopRequest("cancelled", grace_s)
    live = [attempt for attempt in _live_attempts(facts) if attempt.state.is_open]
    return [
        act.stopped(attempt.job, stop)
        for attempt in live
        if attempt.stop_request is None or attempt.stop_request.cause != stop.cause
    ]


def _carry_out_request(request: Request, facts: Facts) -> ActionsAndAnswer:
    if request.verb == "stop":
        return done(AnswerCode.ENDING, act.EndScheduler())
    if request.verb in ("pause", "resume"):
        paused = request.verb == "pause"
        known = (*facts.gpus, *facts.other_gpus)
        gpu = next((one for one in known if one.uuid == request.target), None)
        is_used = gpu is not None and not gpu.paused and gpu.suspicion is None
        code = AnswerCode.NOT_PAUSED if is_used else AnswerCode.RESUMED
        changed = [] if gpu is None else _paused(gpu, request, facts.now, paused=paused)
        return done(AnswerCode.PAUSED if paused else code, *changed)
    if request.verb == "places":
        positions = tuple((job, position) for job, position in request.args["places"])
        return done(AnswerCode.POSITIONS_SET, act.SetQueuePositions(positions))
    if not request.target and request.verb == "recover":
        jobs = tuple(job.id for job in facts.interrupted)
        recoveries = [recovery(job, facts.now) for job in facts.interrupted]
        return [*recoveries], RequestAnswer(AnswerCode.RECOVERED, jobs=jobs)
    if not request.target:
        return [act.ClearFinished()], RequestAnswer(AnswerCode.CLEARED, count=facts.finished_count)
    job = facts.jobs.get(int(request.target))
    if job is None:
        return done(AnswerCode.NO_SUCH_JOB)
    if request.request_id == facts.cyclic_request:
        return [], RequestAnswer(AnswerCode.CYCLE)
    if request.verb == "preempt" and request.args["stop_id"] == _withdrawn_stop(job.id, facts):
        return done(AnswerCode.WITHDRAWN)
    return _JOB_REQUESTS[request.verb](job, request.args, facts.settings, facts.now)


def _paused(gpu: Gpu, request: Request, now: Now, *, paused: bool) -> list[act.GpuChanged]:
    """Returns the change that pauses or resumes a GPU. A resumed GPU is not suspect."""
    if gpu.paused is paused and (paused or gpu.suspicion is None):
        return []
    resumed = replace(gpu, paused=False, usable_since=now.wall, suspicion=None)
    new = replace(gpu, paused=True) if paused else resumed
    return [act.GpuChanged(gpu, new, request.args.get("cause"))]


def _withdrawn_stop(job_id: int, facts: Facts) -> str | None:
    """Returns the id of the preemption that the runner of this job has withdrawn last; None if it has not."""
    withdrawn = (one.status.withdrawn for one in facts.attempts if one.job_id == job_id and one.state.is_open)
    return next((stop.stop_id for stop in withdrawn if stop is not None), None)
