"""Explains whether a job would start now, based on the result of placement and on the values of each GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.core.model.gpu_list import format_gpu_list
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.units import format_share
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, counts_as_idle, obstacle
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.core.text.formatting import format_memory
from gpu_scheduler.views.gpu_obstacle_text import obstacle_remedy, obstacle_text
from gpu_scheduler.views.wait_text import wait_text


def placement(
    need: Need,
    allowed: tuple[int, ...] | None,
    views: Sequence[GpuAvailability],
    limits: Limits,
    *,
    where: str,
    now: float,
    is_in_queue: bool = True,
) -> Finding:
    """Returns the finding about where the job would start if the scheduler placed it now.

    where: where its request can be changed, such as "on the job's line"; now: in seconds since 1970;
    is_in_queue: whether the scheduler may place it, because it is neither held nor waits for other jobs or
    for its line.
    """
    answer = place(need, allowed, views, limits)
    if isinstance(answer, WaitReason):
        if answer.is_infeasible:
            less = "less memory (vram=), or " if need.vram is not None else ""
            remedy = (
                f"{where}, request {less}fewer or other GPUs; or start the scheduler with more GPUs (--gpus)"
            )
            return bad(Check.PLACING, wait_text(answer), remedy)
        return warn(Check.PLACING, wait_text(answer, now), "")
    chosen = [str(view.index) for view in views if view.uuid in answer]
    gpus = f"GPU{'' if len(chosen) == 1 else 's'} {', '.join(chosen)}"
    if not is_in_queue:
        return ok(Check.PLACING, f"{gpus} would accept the job now")
    return ok(Check.PLACING, f"the job would start on {gpus} now")


_NO_PREEMPTION = {
    NoPreemption.NO_LOWER_PRIORITY: "no job of lower priority is running",
    NoPreemption.SPARED: "each running job of lower priority is stopping, was adopted, cannot be reached, or"
    " has run for less than 60 s since it was preempted",
    NoPreemption.ENDING_ANYWAY: "it can start as soon as jobs that are ending have left",
    NoPreemption.NO_HELP: "it could not start even without the jobs of lower priority that may be preempted",
}


def preemption(found: Preemption | NoPreemption) -> Finding:
    """Returns the finding about the jobs that a waiting job preempts, or why it preempts none."""
    if isinstance(found, Preemption):
        return ok(Check.PREEMPTING, "the job may preempt others, and does so next")
    return ok(Check.PREEMPTING, f"the job may preempt others, but not now: {_NO_PREEMPTION[found]}")


def gpu(
    view: GpuAvailability,
    judged: GpuAvailability,
    need: Need,
    allowed: tuple[int, ...] | None,
    limits: Limits,
    holders: Collection[int],
    now: float,
) -> Finding:
    """Returns the finding about whether one GPU accepts the job, with the values that are compared.

    view, judged: the GPU as it is now, and as placement judges it. holders: the ids of the scheduler's jobs
    on the GPU. now: in seconds since 1970.
    """
    measured = _measurements(view, need, limits, holders)
    if need.vram is not None:
        measured += _headroom(view, limits)
    if allowed is not None and view.index not in allowed:
        message = f"not allowed for this job, which may use only {format_gpu_list(allowed)}"
        return ok(Check.GPU, f"{message}; {measured}", view.index)
    why = obstacle(judged, need, limits)
    if why is None:
        return ok(Check.GPU, f"accepts the job; {measured}", view.index)
    brief = replace(why, overtakes=None)  # another finding says why the GPU is reserved
    message = f"does not accept the job: {obstacle_text(brief, now)}; {measured}"
    return warn(Check.GPU, message, obstacle_remedy(why), view.index)


def _measurements(view: GpuAvailability, need: Need, limits: Limits, holders: Collection[int]) -> str:
    jobs = (
        f"share {format_share(view.allocated_share)} allocated to {_jobs(sorted(holders))}"
        if holders
        else "not allocated"
    )
    load = "load unknown" if view.mean_load is None else f"load {view.mean_load:.0f} %"
    return f"{jobs}, {load}, {_foreign_use(view, need, limits)}"


def _foreign_use(view: GpuAvailability, need: Need, limits: Limits) -> str:
    """Describes what foreign processes use, and the thresholds for that."""
    if view.foreign_mib is None:
        return "foreign memory unknown"
    if not view.foreign_mib:
        return "no foreign memory"
    holds = f"foreign memory {format_memory(view.foreign_mib)}"
    if counts_as_idle(view.foreign_mib, limits):
        return f"{holds}, counts as idle (idle threshold {limits.idle_threshold_mib} MiB)"
    if need.alone:
        return f"{holds} (idle threshold {limits.idle_threshold_mib} MiB)"
    if need.vram is None and view.total_mib:
        part, most = 100 * view.foreign_mib / view.total_mib, 100 * limits.mem_threshold
        holds += f", {part:.0f} % of the GPU's memory (threshold {most:.0f} %)"
    load = "unknown, so it is not checked"
    if view.mean_foreign_load is not None:
        load = f"{view.mean_foreign_load:.0f} % (threshold {100 * limits.load_threshold:.0f} %)"
    return f"{holds}, foreign load {load}"


def _headroom(view: GpuAvailability, limits: Limits) -> str:
    """Describes how much memory one more job could declare on the GPU."""
    if view.total_mib is None or view.committed_mib is None:
        return ", allocated memory unknown"
    left = format_memory(max(0, view.total_mib - view.committed_mib - limits.margin_mib))
    taken = f"{format_memory(view.committed_mib)} of {format_memory(view.total_mib)} allocated or in use"
    return f", {taken}, {left} left to declare (margin {limits.margin_mib} MiB)"


def _jobs(ids: Sequence[int]) -> str:
    return f"job{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
