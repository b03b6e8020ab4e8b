"""Formats why a job waits."""

from __future__ import annotations

import math
import posixpath

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.text.formatting import format_memory
from gpu_scheduler.views.need_text import need_text
from gpu_scheduler.views.reason_text import reason_text

#: Kinds whose text is the reason stored with the job.
_STORED = frozenset({WaitKind.HELD, WaitKind.RETRY_DELAY})
#: Causes of a hold that the stored reason explains.
_HELD_ON_REQUEST = ("", "user", "line")
#: Maximum number of GPUs whose obstacles a reason names.
_MAX_OBSTACLES = 4


def job_reason_text(job: JobView) -> str | None:
    """Formats why a job waits or has ended; None if there is nothing to say."""
    wait, reason = job.wait, job.record.reason
    if wait is None or (wait.kind in _STORED and reason is not None):
        return None if reason is None else reason_text(reason)
    if wait.kind in (WaitKind.LINE_MALFORMED, WaitKind.LINE_REMOVED, WaitKind.LINE_CHANGED):
        return _line_wait_text(wait, job.record.source, job.due_in_s)
    return wait_text(wait)


def wait_text(reason: WaitReason) -> str:
    """Formats a reason that does not concern a single job's line."""
    if reason.is_infeasible:
        return f"infeasible: {infeasibility_text(reason)}"
    if reason.kind is WaitKind.NO_FREE_GPU:
        return _no_free_gpu_text(reason)
    if reason.kind is WaitKind.GPUS_UNREADABLE:
        return f"the GPUs cannot be read: {reason.cause}"
    if reason.kind is WaitKind.RELAUNCHED:
        return f"launched {reason.launches} times, not started yet"
    if reason.kind is WaitKind.REQUEST:
        return f"{reason.cause} requested; waiting for the scheduler"
    return _FIXED_TEXTS.get(reason.kind, reason.cause)


_FIXED_TEXTS = {
    WaitKind.HELD: "held",
    WaitKind.PROCESSES_LEFT: "waiting for processes of its last attempt to end",
    WaitKind.SHORTAGE: "not started yet: short of processes, memory, file descriptors or disk space;"
    " retrying",
    WaitKind.NOT_TRIED: "not tried yet",
    WaitKind.NO_SCHEDULER: "no scheduler is running",
}


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
        return f"{needs}, {reason.managed} managed"
    if reason.gpus < min(reason.allowed, reason.managed):
        return f"{needs}; {reason.gpus} of its allowed GPUs managed"
    return f"{needs}, {reason.gpus} allowed"


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
        given = f"{most} MiB"  # both would look equal if rounded
    margin = format_memory(reason.margin_mib)
    size = format_memory(reason.size_mib)
    return f"{have} {size}, of which {given} can be allocated to jobs (margin {margin})"


def _no_free_gpu_text(reason: WaitReason) -> str:
    obstacles = reason.obstacles
    if not obstacles:
        return f"{_needs(reason)}, {reason.gpus} free"
    # Imported here to keep `status` fast when no GPU is named.
    from gpu_scheduler.views.gpu_obstacle_text import obstacle_text

    named = ", ".join(f"GPU {one.gpu} {obstacle_text(one)}" for one in obstacles[:_MAX_OBSTACLES])
    rest = f" and {len(obstacles) - _MAX_OBSTACLES} more" if len(obstacles) > _MAX_OBSTACLES else ""
    return f"{_needs(reason)}, {reason.gpus} free, {named}{rest}"


def _line_wait_text(reason: WaitReason, source: str, due_in_s: float | None) -> str:
    file = posixpath.basename(source.partition(":")[2]) or "its jobs file"
    left = None if due_in_s is None or due_in_s <= 0 else math.ceil(due_in_s)
    if reason.kind is WaitKind.LINE_MALFORMED:
        return f"line {reason.line_number} of {file} is malformed; waiting until it is corrected"
    if reason.kind is WaitKind.LINE_REMOVED:
        when = "cancelled" if left is None else f"cancelled in {left} s"
        return f"line removed from {file}; {when} unless it is restored"
    when = "and has not been read yet" if left is None else f"and takes effect in {left} s"
    return f"line {reason.line_number} of {file} was changed {when}"
