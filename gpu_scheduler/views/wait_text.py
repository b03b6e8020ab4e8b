"""Formats why a job waits."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import UNRESOLVED, Parent, ParentStatus, status_of
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.units import WHOLE, format_share
from gpu_scheduler.core.model.wait_reason import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.text.formatting import and_more, count_noun, format_jobs, format_memory, times_text
from gpu_scheduler.views.job_text import finish_text, parent_end_text, reason_text, reserved_text

if TYPE_CHECKING:
    from gpu_scheduler.app.round_facts import CurrentNeed
    from gpu_scheduler.core.model.attempt_status import StopRequest
    from gpu_scheduler.core.model.job_spec import Need


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
    from gpu_scheduler.app.round_facts import NeedSource

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
            "name": parent.name,
            "state": parent.state,
            "outcome": parent.outcome,
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
    text = reserved_text(first.job_id or 0, first.reserved_from or 0.0, first.overtakes, now)
    return f"{gpus_are([one.gpu for one in kept])} {text}"


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
        return _line_wait_text(wait, job.record.source, job.due_in_s)
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


def wait_text(reason: WaitReason, now: float = 0.0) -> str:
    """Formats a wait reason, unless it concerns the line or the parents of a single job.

    now: the time in seconds since 1970, relative to which other times are given; 0 if unknown.
    """
    if reason.is_infeasible:
        return f"infeasible: {infeasibility_text(reason)}"
    if reason.kind is WaitKind.NO_FREE_GPU:
        return _no_free_gpu_text(reason, now)
    if reason.kind is WaitKind.GROUP_FULL:
        return f"{reason.running} of {reason.max_running} jobs of group {reason.cause} are running"
    if reason.kind is WaitKind.CPU_JOBS_FULL:
        return f"{reason.running} of {reason.max_running} jobs without a GPU are running"
    if reason.kind is WaitKind.GPUS_UNREADABLE:
        return f"the GPUs cannot be read: {reason.cause}"
    if reason.kind is WaitKind.RELAUNCHED:
        return f"launched {reason.launches} times but not started yet"
    if reason.kind is WaitKind.PREEMPTING:
        return _preempting_text(reason)
    if reason.kind is WaitKind.RESERVED:
        return _reserved_text(reason, now)
    if reason.kind is WaitKind.REQUEST:
        return f"{_COMMANDS.get(reason.cause, reason.cause)} requested; waiting for the scheduler"
    if reason.kind is WaitKind.START_INTERVAL:
        return f"about to start; there are at least {reason.cause} s between two starts (--start-interval)"
    if reason.kind is WaitKind.NOT_WATCHED:
        return f"process {reason.cause} is not watched yet"
    return _FIXED_TEXTS.get(reason.kind, reason.cause)


#: The commands whose requests have another name.
_COMMANDS = {"resume_job": "resume --job"}
_FIXED_TEXTS = {
    WaitKind.HELD: "held",
    WaitKind.PROCESSES_LEFT: "waiting for processes of its last attempt to end",
    WaitKind.SHORTAGE: "not started yet, because the machine is short of processes, memory, file descriptors"
    " or disk space; the scheduler keeps trying",
    WaitKind.NOT_TRIED: "not examined yet",
    WaitKind.NO_SCHEDULER: "no scheduler is running",
}


def _preempting_text(reason: WaitReason) -> str:
    if not reason.victims:
        return "about to start on the GPUs that are reserved for it"
    be = "is" if len(reason.victims) == 1 else "are"
    return f"waiting for {format_jobs(reason.victims)}, which {be} being preempted for it"


def _reserved_text(reason: WaitReason, now: float) -> str:

    free = f"; {_needs(reason)}, {reason.gpus} free" if reason.need is not None else ""
    own = own_reservation_text(reason.reserved, reason.reserved_from or 0.0, now)
    return f"{own}, because it has been overtaken {times_text(reason.overtakes or 0)}{free}"


def held_text(job: JobView) -> str:
    """Formats why a job is held, with the word "held"."""
    reason, wait = job_reason_text(job), job.wait
    is_said = wait is not None and wait.kind is WaitKind.HELD and wait.cause in _HELD_ON_REQUEST
    return reason if reason and is_said else f"held: {reason}" if reason else "held"


def infeasibility_text(reason: WaitReason) -> str:
    """Formats why a job can never fit, without the word "infeasible"."""
    needs = _needs(reason)
    if reason.kind is WaitKind.GPUS_TOO_SMALL:
        return f"{needs}, but {_too_small_text(reason)}"
    if reason.allowed is None:
        return f"{needs}, but {_only(reason.managed)} managed"
    if reason.gpus < reason.allowed:
        return f"{needs}, but {_only(reason.gpus, ' of its allowed GPUs')} managed"
    return f"{needs}, but {_only(reason.gpus)} allowed"


def _only(count: int, of: str = "") -> str:
    """Formats a count with its verb: "none is", "only 1 is", "only 2 of its allowed GPUs are"."""
    return f"none{of} is" if count == 0 else f"only {count}{of} {'is' if count == 1 else 'are'}"


def _needs(reason: WaitReason) -> str:
    return "" if reason.need is None else f"needs {need_text(reason.need)}"


def _too_small_text(reason: WaitReason) -> str:
    kind = "managed" if reason.allowed is None else "allowed"
    count = reason.need.count if reason.need else 1
    if count == 1:
        have = f"the largest {kind} GPU has"
    elif reason.size_mib == reason.largest_mib:
        have = f"the largest {kind} GPUs have"
    else:
        have = f"the smallest of the {count} largest {kind} GPUs has"
    most = max(0, reason.size_mib - reason.margin_mib)
    given = format_memory(most)
    if reason.need and reason.need.vram is not None and given == format_memory(reason.need.vram):
        given = f"{most} MiB"  # rounded to GiB, both values would look equal
    margin = format_memory(reason.margin_mib)
    size = format_memory(reason.size_mib)
    return f"{have} {size}, of which {given} can be allocated to jobs (margin {margin})"


def _no_free_gpu_text(reason: WaitReason, now: float) -> str:
    head = f"{_needs(reason)}, {reason.gpus} free"
    if not reason.obstacles:
        return head
    # This import is here to keep `status` fast if the reason lists no GPU.
    from gpu_scheduler.views.gpu_text import obstacle_text

    obstacles = [one for one in reason.obstacles if not is_by_queue_order(one)]
    listed = [f"GPU {one.gpu}: {obstacle_text(one, now)}" for one in obstacles[:_MAX_OBSTACLES]]
    if len(obstacles) > _MAX_OBSTACLES:
        listed.append(f"and {len(obstacles) - _MAX_OBSTACLES} more")
    others = f" ({'; '.join(listed)})" if listed else ""
    reserved = reserved_gpus_text(reason.obstacles, now)
    return f"{head}{others}; {reserved}" if reserved else f"{head}{others}"


def _line_wait_text(reason: WaitReason, source: str, due_in_s: float | None) -> str:
    if reason.kind is WaitKind.NOT_CONFIRMED:
        return f"the Redis queue has not confirmed {source} yet"
    file = posixpath.basename(source.partition(":")[2]) or "its jobs file"
    left = None if due_in_s is None or due_in_s <= 0 else math.ceil(due_in_s)
    if reason.kind is WaitKind.LINE_MALFORMED:
        return f"line {reason.line_number} of {file} is malformed; the job waits until it is corrected"
    if reason.kind is WaitKind.LINE_REMOVED:
        when = "the job is cancelled" if left is None else f"the job is cancelled in {left} s"
        return f"line removed from {file}; {when} unless the line is restored"
    when = "the scheduler has not read it yet" if left is None else f"the change takes effect in {left} s"
    return f"line {reason.line_number} of {file} was changed; {when}"
