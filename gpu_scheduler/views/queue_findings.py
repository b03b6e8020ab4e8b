"""Formats the findings of `why` about overtaken jobs and about GPUs that are reserved by queue order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpu_scheduler.core.model.finding import Check, Finding, ok, warn
from gpu_scheduler.core.model.gpu_list import format_gpu_list
from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability
from gpu_scheduler.core.scheduling.queue_outlook import AwaitedEnd, EndBasis, QueueOutlook
from gpu_scheduler.core.scheduling.run_times import Estimate, Prediction
from gpu_scheduler.core.text.formatting import format_duration
from gpu_scheduler.views.reservation_text import (
    is_by_queue_order,
    own_reservation_text,
    reserved_gpus_text,
    times_text,
)


def findings(
    outlook: QueueOutlook, judged: Sequence[GpuAvailability], now: float, idle_budget: float, where: str
) -> Iterator[Finding]:
    """Yields the findings about one queued job.

    judged: the GPUs as placement judges them for the job. now: in seconds since 1970. where: where its
    attributes can be changed, such as "on the job's line".
    """
    kept = [gpu.unavailable for gpu in judged if gpu.unavailable and is_by_queue_order(gpu.unavailable)]
    if outlook.reservation is not None:
        own = own_reservation_text(outlook.gpus, outlook.reservation.start_at, now)
        yield ok(Check.RESERVED, f"{own}, because it has been overtaken {times_text(outlook.overtakes)}")
        yield from (ok(Check.RESERVED, _awaited_text(one)) for one in outlook.awaited)
    elif outlook.overtakes:
        yield ok(Check.OVERTAKEN, f"overtaken {times_text(outlook.overtakes)}; {_then(outlook, idle_budget)}")
    if kept:
        rule = "the job may use a reserved GPU only if it leaves room for that job or ends before it starts"
        yield warn(
            Check.RESERVED,
            f"{reserved_gpus_text(kept, now)}; {rule}, and {_own_time_text(outlook.estimate)}",
            _remedy(outlook.estimate, kept, now, where),
        )


def _remedy(estimate: Estimate, kept: Sequence[GpuObstacle], now: float, where: str) -> str:
    """Formats the advice to give a time limit to a job about whose run time nothing is known; "" if none."""
    minutes = math.floor((min(one.reserved_from or now for one in kept) - now) / 60)
    if estimate.upper_s < math.inf or minutes < 1:
        return ""
    return f"if it surely ends before that, {where}, give it a time limit, such as timeout={minutes}m"


def _then(outlook: QueueOutlook, idle_budget: float) -> str:
    """Formats when GPUs are reserved for a job that has been overtaken, or why they are not."""
    if outlook.overtakes < outlook.needed:
        why = ", because nothing is known about the end of a job on these GPUs" if outlook.is_guess else ""
        return f"after {outlook.needed}, GPUs are reserved for it{why}"
    if outlook.first_job is not None:
        return f"job {outlook.first_job}, which is before it in the queue, has the reserved GPUs"
    if not outlook.is_possible:
        return "no GPUs are reserved for it, because it is not known when enough of them will be free for it"
    if outlook.is_over_budget:
        return (
            "no GPUs are reserved for it, because reserved GPUs were idle for more than"
            f" {100 * idle_budget:g} % of the GPU time that jobs got in the last 7 days (--idle-budget)"
        )
    return "GPUs are reserved for it next"


def _awaited_text(one: AwaitedEnd) -> str:
    gpus = f"GPU{'' if len(one.gpus) == 1 else 's'} {format_gpu_list(one.gpus)}"
    head = f"{gpus}: job {one.job_id}"
    if one.basis is EndBasis.ENDING:
        return f"{head} is ending"
    when = "may never end" if one.in_s == math.inf else f"is expected to end in {format_duration(one.in_s)}"
    return f"{head} {when} ({_basis_text(one)})"


def _basis_text(one: AwaitedEnd) -> str:
    ran = f"it has run for {format_duration(one.age_s)}"
    if one.basis is EndBasis.PROGRESS:
        return f"by its progress; {ran}"
    if one.basis is EndBasis.RUN_TIMES and one.prediction is not None:
        return f"{ran}{_earlier_runs_text(one.prediction, one.age_s)}"
    limit = "" if one.timeout_s is None else f", its time limit is {format_duration(one.timeout_s)}"
    return f"a guess: {ran}{limit}, and too few earlier runs are known"


def _earlier_runs_text(prediction: Prediction, age_s: float) -> str:
    """Formats the run times of earlier runs, beside the run time of a job so far, in seconds."""
    median = format_duration(prediction.seconds)
    runs = "one earlier run" if prediction.runs == 1 else f"the median of {prediction.runs} earlier runs"
    if age_s > prediction.seconds:
        return f", longer than {runs}, {median}"
    return f"; one earlier run took {median}" if prediction.runs == 1 else f"; {runs} is {median}"


def _own_time_text(estimate: Estimate) -> str:
    if estimate.upper_s == math.inf:
        return "nothing is known about how long it takes"
    if estimate.predicted_s is None:
        return f"it takes at most its time limit of {format_duration(estimate.upper_s)}"
    return f"nine of ten such jobs take at most {format_duration(estimate.upper_s)}"
