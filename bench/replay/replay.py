"""Replays a trace on idle GPUs, and measures what became of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.replay.estimates import KINDS
from bench.replay.trace import TraceJob, shortest_makespan_s
from gpu_scheduler.core.model.gpu import Gpu, GpuSample
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.forecast import Playback
from gpu_scheduler.core.scheduling.history import RunTimeKey
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Settings

#: Run times below this count as this in the slowdown, so that very short jobs do not dominate it.
SLOWDOWN_BOUND_S = 60.0
_MEMORY_MIB = 81_920


@dataclass(frozen=True)
class Outcome:
    """When each job of the trace started, in its order, in the seconds of the trace; and the idle time.

    reserved_idle: the GPU time that was idle on GPUs reserved by queue order, as a part of the work.
    """

    starts: tuple[float, ...]
    reserved_idle: float


def replay(jobs: Sequence[TraceJob], settings: Settings, *, times: str, gpus: int, seed: int) -> Outcome:
    """Plays a trace. times: one of KINDS. Raises ValueError if a job can never start."""
    estimates = KINDS[times](jobs, seed)
    began = min(job.submit_s for job in jobs)
    facts = Facts(Now(began, began, "replay"), settings, LlmConfig(), _idle_gpus(gpus), run_times=estimates)
    playback = Playback(facts, lambda job: jobs[job.job_id - 1].duration_s)
    for number, job in enumerate(jobs):
        queued = QueuedJob(
            number + 1, 200, number + 1, job.submit_s, job.submit_s, RunTimeKey(str(number), "{}")
        )
        playback.submit(queued, job.resources, job.submit_s)
    starts: dict[int, float] = {}
    for run in playback.play():
        starts[run.job_id - 1] = run.started_at
        estimates.learn(run.job_id - 1)
    if playback.waiting:
        job = jobs[playback.waiting[0].job_id - 1]
        raise ValueError(f"the job submitted at {job.submit_s:g} s needs {job.gpus} GPUs; there are {gpus}")
    work_s = sum(job.work_s for job in jobs)
    return Outcome(tuple(starts[n] for n in range(len(jobs))), playback.reserved_idle_s / work_s)


def _idle_gpus(number: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            f"GPU-{index}", index, mean_load=0.0, sampled_boot=0.0, foreign_loads=(0.0,),
            foreign_load_boot=0.0,
            sample=GpuSample(f"GPU-{index}", index, "GPU", _MEMORY_MIB, 0, 0.0, ()),
        )
        for index in range(number)
    )  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """The figures of one replay; times in hours.

    makespan: as a multiple of its lower bound. slowdown: mean of (wait + run time) / run time, bounded.
    idle: the part of all GPU time until the last end that no job got.
    """

    makespan_h: float
    makespan: float
    mean_h: float
    median_h: float
    worst_h: float
    multi_mean_h: float
    multi_median_h: float
    multi_worst_h: float
    slowdown: float
    idle: float
    reserved_idle: float


def figures(jobs: Sequence[TraceJob], outcome: Outcome, gpus: int) -> Figures:
    """Returns the figures of a replay."""
    ends = [at + job.duration_s for job, at in zip(jobs, outcome.starts, strict=True)]
    makespan_s = max(ends) - min(job.submit_s for job in jobs)
    waits = [(at - job.submit_s) / 3600 for job, at in zip(jobs, outcome.starts, strict=True)]
    multi = [wait for job, wait in zip(jobs, waits, strict=True) if job.gpus > 1] or [0.0]
    slowdowns = [
        max(1.0, (3600 * wait + job.duration_s) / max(SLOWDOWN_BOUND_S, job.duration_s))
        for job, wait in zip(jobs, waits, strict=True)
    ]
    return Figures(
        makespan_s / 3600, makespan_s / shortest_makespan_s(jobs, gpus),
        fmean(waits), median(waits), max(waits), fmean(multi), median(multi), max(multi),
        fmean(slowdowns), 1 - sum(job.work_s for job in jobs) / (gpus * makespan_s), outcome.reserved_idle,
    )  # fmt: skip
