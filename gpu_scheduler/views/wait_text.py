"""Formats why a job waits."""

from __future__ import annotations

import math
import posixpath

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.text.formatting import format_jobs, format_memory
from gpu_scheduler.views.need_text import need_text
from gpu_scheduler.views.parent_text import parents_wait_text
from gpu_scheduler.views.reason_text import reason_text
from gpu_scheduler.views.stop_text import stop_text

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
    WaitKind.NOT_TRIED: "not tried yet",
    WaitKind.NO_SCHEDULER: "no scheduler is running",
}


def _preempting_text(reason: WaitReason) -> str:
    if not reason.victims:
        return "about to start on the GPUs that are reserved for it"
    be = "is" if len(reason.victims) == 1 else "are"
    return f"waiting for {format_jobs(reason.victims)}, which {be} being preempted for it"


def _reserved_text(reason: WaitReason, now: float) -> str:
    from gpu_scheduler.views.reservation_text import own_reservation_text, times_text

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
    from gpu_scheduler.views.gpu_obstacle_text import obstacle_text
    from gpu_scheduler.views.reservation_text import is_by_queue_order, reserved_gpus_text

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
