"""Generates traces. The same seed always gives the same trace.

stream    one-GPU jobs arrive at random for 30 days and take 8 GPUs to the given load; one job with 8 GPUs is
          submitted after 12 h
batch     jobs of mixed sizes are all submitted at once
mixes     jobs of mixed sizes arrive in days and nights, with run times of which a few are very long
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from bench.replay.trace import TraceJob

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def stream(
    load: float, seed: int, *, minutes: float = 15.0, gpus: int = 8, days: float = 30.0
) -> list[TraceJob]:
    """Returns one-GPU jobs with this mean run time, and one job that needs all GPUs for 4 h."""
    chance = random.Random(f"stream {load} {seed}")
    mean_s = 60 * minutes
    jobs, at = [], 0.0
    while (at := at + chance.expovariate(load * gpus / mean_s)) < days * DAY_S:
        jobs.append(TraceJob(at, _duration_s(chance, mean_s, 1.0), name="small"))
    jobs.append(TraceJob(12 * HOUR_S, 4 * HOUR_S, gpus, name="large"))
    return sorted(jobs, key=lambda job: job.submit_s)


def batch(number: int, seed: int) -> list[TraceJob]:
    """Returns jobs of mixed sizes, all submitted at time 0."""
    chance = random.Random(f"batch {number} {seed}")
    sizes = {(1, 250): 10, (1, 500): 15, (1, 1000): 45, (2, 1000): 15, (4, 1000): 10, (8, 1000): 5}
    return [_job(chance, sizes, HOUR_S, 1.2) for _ in range(number)]


@dataclass(frozen=True)
class Mix:
    """The parameters of a mix.

    load: the work, as a part of what 8 GPUs can do while jobs arrive. mean_s: of the run times, whose
    logarithms have the standard deviation sigma. night: the rate of arrivals at midnight, as a part of that
    at noon. sizes: how often a job needs so many GPUs and so many thousandths of each.
    """

    jobs: int
    load: float
    mean_s: float
    sigma: float
    night: float
    sizes: Mapping[tuple[int, int], float]


_LAB = {(1, 1000): 86, (2, 1000): 6, (4, 1000): 4, (8, 1000): 4}
_SWEEPS = {(1, 500): 30, (1, 1000): 60, (2, 1000): 5, (4, 1000): 3, (8, 1000): 2}
_TRAINING = {(1, 1000): 75, (2, 1000): 12, (4, 1000): 8, (8, 1000): 5}

#: Three mixes, named after those who have such queues.
MIXES = {
    "lab": Mix(2500, 1.0, HOUR_S, 1.6, 0.4, _LAB),
    "sweeps": Mix(2500, 0.9, 0.5 * HOUR_S, 1.4, 0.4, _SWEEPS),
    "training": Mix(2500, 1.1, HOUR_S, 1.4, 0.4, _TRAINING),
}


def mix(name: str, seed: int, *, gpus: int = 8) -> list[TraceJob]:
    """Returns the jobs of one of the MIXES."""
    values = MIXES[name]
    chance = random.Random(f"x {seed}")
    jobs = [_job(chance, values.sizes, values.mean_s, values.sigma) for _ in range(values.jobs)]
    seconds = sum(job.work_s for job in jobs) / (values.load * gpus)
    times = _arrivals(chance, len(jobs), seconds, values.night)
    return [
        TraceJob(at, job.duration_s, job.gpus, job.share, job.name)
        for at, job in zip(times, jobs, strict=True)
    ]


def _job(
    chance: random.Random,
    sizes: Mapping[tuple[int, int], float],
    mean_s: float,
    sigma: float,
) -> TraceJob:
    """Returns a job that is submitted at time 0."""
    [(gpus, share)] = chance.choices(list(sizes), list(sizes.values()))
    duration_s = _duration_s(chance, mean_s, sigma)
    return TraceJob(0.0, duration_s, gpus, share, f"{gpus}x{share / 1000:g}")


def _duration_s(chance: random.Random, mean_s: float, sigma: float) -> float:
    """Returns a run time of at least 10 s and at most 5 days."""
    return min(5 * DAY_S, max(10.0, chance.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)))


def _arrivals(chance: random.Random, number: int, seconds: float, night: float) -> list[float]:
    """Returns sorted times, more of them by day. night: the rate at midnight, as a part of that at noon."""
    step = 600.0
    rates = [
        night + (1 - night) * (1 - math.cos(2 * math.pi * n * step / DAY_S)) / 2
        for n in range(math.ceil(seconds / step))
    ]
    sums = list(accumulate(rates))
    found = []
    for _ in range(number):
        place = bisect_left(sums, chance.random() * sums[-1])
        found.append(min(seconds, (place + chance.random()) * step))
    return sorted(found)
