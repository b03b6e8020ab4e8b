"""Formats why a job waits."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import UNRESOLVED, Parent, ParentStatus, status_of
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import WHOLE, format_share
from gpu_scheduler.core.text.formatting import (
    and_more,
    count_noun,
    format_jobs,
    format_memory,
    picked,
    times_text,
)
from gpu_scheduler.show.job_text import finish_text, from_time_text, parent_end_text, reason_text
from gpu_scheduler.show.job_views import JobView

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import StopRequest
    from gpu_scheduler.core.model.job_spec import Need
    from gpu_scheduler.show.round_facts import CurrentNeed


# Formats a job's need, and where the need comes from.


def need_text(need: Need) -> str:
    """Formats a need: "0.5 of a GPU", "2 idle GPUs", "17.6 GiB of each of 2 GPUs", "no GPU"."""
    if not need.count:
        return "no GPU"
    each = "" if need.count == 1 else "each of "
    many = "a GPU" if need.count == 1 else f"{need.count} GPUs"
    if need.vram is not None and need.share == WHOLE:
        free = f"{need.count} free GPU{'' if need.count == 1 else 's'}"
        return f"{free} with {format_memory(need.vram)}{'' if need.count == 1 else ' each'}"
    if need.vram is not None:
        part = f"{format_share(need.share)} and " if need.share else ""
        shared = "" if not need.exclusive else ", alone" if need.count == 1 else ", each alone"
        return f"{part}{format_memory(need.vram)} of {each}{many}{shared}"
    if need.share == WHOLE or need.alone or not need.share:
        kind = "idle" if need.alone else "free"
        return f"{need.count} {kind} GPU{'' if need.count == 1 else 's'}"
    shared = ", alone" if need.exclusive else ""
    return f"{format_share(need.share)} of {each}{many}{shared}"


def current_need_text(current: CurrentNeed) -> str:
    """Formats a need and where it comes from: "0.5 of a GPU (model qwen2.5-3b-inst)"."""
    return f"{need_text(current.need)} ({_source_text(current)})"


def _source_text(current: CurrentNeed) -> str:
    # This import is here to keep commands fast that show a need without its source.
    from gpu_scheduler.show.round_facts import NeedSource

    spec, source = current.spec, current.source
    if source is NeedSource.EARLIER_ATTEMPT:
        declared = "no memory" if spec.vram is None else format_memory(spec.vram)
        return f"{source.value}; its line declares {declared}"
    if source is NeedSource.TORCHRUN:
        return f"torchrun, {count_noun(spec.torchrun or 0, 'GPU')}"
    if source is NeedSource.MODEL:
        return f"model {spec.llm}"
    if source is NeedSource.LEARNED:
        return "learned from finished jobs of the same kind"
    return str(source.value)


# Formats the parents of a job.


#: Maximum number of parents that one reason names.
_MAX_NAMED = 3


def parents_wait_text(parents: Sequence[Parent]) -> str:
    """Formats the wait of a queued job for its parents: "after job 3 (running), job 4 (held) and 2 more"."""
    for parent in parents:
        if status_of(parent) is ParentStatus.FAILED:
            return f"{parent_end_text(parent.id, parent.outcome)}, so the job will be skipped"
    return f"after {unmet_parents_text(parents)}"


def unmet_parents_text(parents: Sequence[Parent]) -> str:
    """Names the parents for which a job still waits: "job 3 (running), job 4 (held) and 2 more"."""
    unmet = [parent for parent in parents if status_of(parent) is not ParentStatus.MET]
    named = ", ".join(map(_with_state, unmet[:_MAX_NAMED])) or "jobs whose end is not recorded yet"
    return and_more(named, len(unmet) - _MAX_NAMED)


def _with_state(parent: Parent) -> str:
    if parent.id == UNRESOLVED:
        return f"{parent.reference} (no such job, or it waits for this job)"
    return f"job {parent.id} ({_state_text(parent)})"


def parent_text(parent: Parent) -> str:
    """Formats a parent with the attribute that names it: "after=prep: job 3 (prep) is running"."""
    given = f"{parent.kind.attribute}={parent.reference}"
    if parent.id == UNRESOLVED:
        return f"{given} names no job, or a job that waits for this one"
    name = f" ({parent.name})" if parent.name else ""
    verb = "has ended:" if parent.state is JobState.FINISHED else "is"
    return f"{given}: job {parent.id}{name} {verb} {_state_text(parent)}"


def _state_text(parent: Parent) -> str:
    """Formats the state of a parent, or its outcome: "held", "timed out"."""
    if parent.state is None:
        return "unknown"
    return str(parent.outcome or parent.state).replace("_", " ")


def parent_objects(parents: Sequence[Parent]) -> list[dict[str, Any]]:
    """Returns the parents of a job as its list "after" in JSON."""
    return [
        {
            "id": None if parent.id == UNRESOLVED else parent.id,
            **picked(parent, "name", "state", "outcome"),
            "kind": parent.kind.attribute,
            "reference": parent.reference,
        }
        for parent in parents
    ]


# Formats why an attempt is being stopped, and what follows.


def stop_cause_text(cause: str, preemptor: int | None) -> str:
    """Formats why a job is being stopped, as a phrase that follows its name and "is"."""
    if cause == "timed_out":
        return "being stopped at its time limit"
    purpose = "" if preemptor is None else f" for job {preemptor}"
    return f"being {cause}{purpose}" if cause in ("cancelled", "preempted") else "being stopped"


def stop_text(stop: StopRequest, left_s: float | None) -> str:
    """Formats a request to stop a job. left_s: the seconds left of the grace period; None if unknown."""
    if left_s is None:
        when = f" {stop.grace_s:g} s after the signal"
    else:
        when = f" in {math.ceil(left_s)} s" if left_s > 0 else " now"
    then = "gets SIGKILL" if stop.on_timeout == "kill" else "continues if it has not ended"
    parts = [stop_cause_text(stop.cause, stop.preemptor), f"{then}{when}"]
    if stop.cause == "preempted":
        parts.append("then queued again" if stop.next_state is JobState.QUEUED else "held if it ends")
    return "; ".join(parts)


# Formats the reservation of GPUs by queue order.


def gpus_are(indices: Sequence[int]) -> str:
    """Formats GPUs as a subject with its verb: "GPU 2 is", "GPUs 0-7 are"."""
    return f"GPU{'' if len(indices) == 1 else 's'} {format_gpu_list(indices)} {_be(len(indices))}"


def own_reservation_text(gpus: Sequence[int], start_at: float, now: float) -> str:
    """Formats the reservation of the job itself: "GPUs 0-7 are reserved for it from about 14:20"."""
    return f"{gpus_are(gpus)} reserved for it from about {finish_text(start_at, now)}"


def is_by_queue_order(found: GpuObstacle) -> bool:
    """Returns whether a GPU is reserved by queue order, rather than for a job that preempts others."""
    return found.kind is ObstacleKind.RESERVED and found.reserved_from is not None


def reserved_gpus_text(obstacles: Sequence[GpuObstacle], now: float) -> str:
    """Formats the GPUs among these that are reserved by queue order, for one job; "" if there are none."""
    kept = [one for one in obstacles if is_by_queue_order(one)]
    if not kept:
        return ""
    first = kept[0]
    since = from_time_text(first.reserved_from or 0.0, first.overtakes, now)
    return f"{gpus_are([one.gpu for one in kept])} reserved for job {first.job_id}{since}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


#: For these kinds, the reason stored with the job is shown.
_STORED = frozenset({WaitKind.HELD, WaitKind.RETRY_DELAY})
#: For these causes of a hold, the stored reason contains the word "held".
_HELD_ON_REQUEST = ("", "user", "line")
#: The kinds that keep a single job from starting, whatever its group waits for.
_GATES = (
    WaitKind.LINE_MALFORMED, WaitKind.LINE_REMOVED, WaitKind.LINE_CHANGED, WaitKind.NOT_CONFIRMED,
)  # fmt: skip
#: Maximum number of GPUs whose obstacles are shown in one reason.
_MAX_OBSTACLES = 4


def job_reason_text(job: JobView) -> str | None:
    """Formats why a job waits, is being stopped or has ended; None if there is nothing to say."""
    wait, reason = job.wait, job.record.reason
    if wait is None and job.stop is not None:
        return stop_text(job.stop, job.stop_in_s)
    if wait is None or (wait.kind in _STORED and reason is not None):
        return None if reason is None else reason_text(reason)
    if wait.kind in _GATES:
        return wait_text(wait, job.as_of, job.record.source, job.due_in_s)
    if wait.kind is WaitKind.PARENTS:
        return parents_wait_text(job.parents)
    preemption, text = _preemption(job), wait_text(wait, job.as_of)
    return text if preemption is None else f"{text}; {reason_text(preemption)}"


def _preemption(job: JobView) -> StateReason | None:
    """Returns why the last attempt of a queued job ended, if another job took its place."""
    ended = job.attempt
    if job.record.state is not JobState.QUEUED or ended is None or ended.outcome is not Outcome.PREEMPTED:
        return None
    return None if ended.reason is None or ended.reason.preemptor is None else ended.reason


def wait_text(reason: WaitReason, now: float = 0.0, source: str = "", due_in_s: float | None = None) -> str:
    """Formats a wait reason, unless it concerns the parents of a single job.

    now: the time in seconds since 1970, relative to which other times are given; 0 if unknown. source,
    due_in_s: where a single job comes from, and the seconds until its changed line takes effect.
    """
    if reason.kind not in _GATES:
        return reason.kind.fill(reason, _PHRASES, now)
    file = posixpath.basename(source.partition(":")[2]) or "its jobs file"
    left = "" if due_in_s is None or due_in_s <= 0 else f" in {math.ceil(due_in_s)} s"
    effect = f"the change takes effect{left}" if left else "the scheduler has not read it yet"
    return reason.kind.sentence.format(
        line_number=reason.line_number, file=file, when=left, effect=effect, source=source
    )


def infeasibility_text(reason: WaitReason) -> str:
    """Formats why a job can never fit, without the word "infeasible"."""
    return wait_text(reason).removeprefix("infeasible: ")


def held_text(job: JobView) -> str:
    """Formats why a job is held, with the word "held"."""
    reason, wait = job_reason_text(job), job.wait
    is_said = wait is not None and wait.kind is WaitKind.HELD and wait.cause in _HELD_ON_REQUEST
    return reason if reason and is_said else f"held: {reason}" if reason else "held"


def _needs(reason: WaitReason) -> str:
    return "" if reason.need is None else f"needs {need_text(reason.need)}"


def _too_few(reason: WaitReason) -> str:
    """Names the number of GPUs: "none is managed", "only 2 of its allowed GPUs are managed"."""
    count = reason.managed if reason.allowed is None else reason.gpus
    of = "" if reason.allowed is None or count >= reason.allowed else " of its allowed GPUs"
    which = "managed" if reason.allowed is None or of else "allowed"
    return f"{f'only {count}' if count else 'none'}{of} {'are' if count > 1 else 'is'} {which}"


def _largest(reason: WaitReason) -> str:
    kind = "managed" if reason.allowed is None else "allowed"
    count = reason.need.count if reason.need else 1
    if count == 1:
        return f"the largest {kind} GPU has"
    if reason.size_mib == reason.largest_mib:
        return f"the largest {kind} GPUs have"
    return f"the smallest of the {count} largest {kind} GPUs has"


def _most(reason: WaitReason) -> str:
    """Formats the memory that can be allocated; in MiB if it would look equal to the need, as rounded."""
    most = max(0, reason.size_mib - reason.margin_mib)
    given = format_memory(most)
    return f"{most} MiB" if reason.need and given == format_memory(reason.need.vram) else given


def _others(reason: WaitReason, now: float) -> str:
    """Names the GPUs that do not accept the job, after the number of those that do."""
    if not reason.obstacles:
        return ""
    # This import is here to keep `status` fast if the reason lists no GPU.
    from gpu_scheduler.show.gpu_text import obstacle_text

    obstacles = [one for one in reason.obstacles if not is_by_queue_order(one)]
    listed = [f"GPU {one.gpu}: {obstacle_text(one, now)}" for one in obstacles[:_MAX_OBSTACLES]]
    if len(obstacles) > _MAX_OBSTACLES:
        listed.append(f"and {len(obstacles) - _MAX_OBSTACLES} more")
    others = f" ({'; '.join(listed)})" if listed else ""
    reserved = reserved_gpus_text(reason.obstacles, now)
    return f"{others}; {reserved}" if reserved else others


def _preempting(reason: WaitReason) -> str:
    if not reason.victims:
        return "about to start on the GPUs that are reserved for it"
    return (
        f"waiting for {format_jobs(reason.victims)}, which {_be(len(reason.victims))} being preempted for it"
    )


#: The phrases in the sentences of `WaitKind`.
_PHRASES: Mapping[str, Callable[[WaitReason, float], str]] = {
    "needs": lambda reason, _: _needs(reason),
    "others": _others,
    "only": lambda reason, _: _too_few(reason),
    "largest": lambda reason, _: _largest(reason),
    "size": lambda reason, _: format_memory(reason.size_mib),
    "most": lambda reason, _: _most(reason),
    "margin": lambda reason, _: format_memory(reason.margin_mib),
    "preempting": lambda reason, _: _preempting(reason),
    "reservation": lambda it, now: own_reservation_text(it.reserved, it.reserved_from or 0.0, now),
    "times": lambda reason, _: times_text(reason.overtakes or 0),
    "free": lambda reason, _: "" if reason.need is None else f"; {_needs(reason)}, {reason.gpus} free",
    "engine": lambda reason, _: reason.cause.capitalize(),
    "waiting": lambda reason, _: f"{count_noun(reason.running, 'job')} wait{'s' * (reason.running == 1)}",
    #: `resume --job` records a request of another name.
    "command": lambda reason, _: "resume --job" if reason.cause == "resume_job" else reason.cause,
}
