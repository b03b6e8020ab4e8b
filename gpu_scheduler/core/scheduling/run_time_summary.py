"""Summarises how long the jobs of each workload class ran, and how good the estimates were."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median

from gpu_scheduler.core.scheduling.run_times import MIN_RUNS, ClassRunTimes, RunTimes, upper_quantile


@dataclass(frozen=True)
class RunTimeSummary:
    """The completed runs of one program with one model, or without a model (llm is None).

    commands: the number of different identities. upper_ratio: the multiple of its estimate within which nine
    of ten runs ended. median_error: the median difference between a run and its estimate, as a fraction of
    the estimate. Both are None if fewer than MIN_RUNS runs could be estimated from the runs before them.
    """

    program: str
    llm: str | None
    runs: int
    commands: int
    median_s: float
    upper_ratio: float | None
    median_error: float | None


def summarise(run_times: RunTimes) -> list[RunTimeSummary]:
    """Returns the summary of each workload class, sorted by program and model."""
    return [_summary(key, known) for key, known in sorted(run_times.classes.items())]


def _summary(key: str, known: ClassRunTimes) -> RunTimeSummary:
    program, llm = json.loads(key)
    enough = len(known.ratios) >= MIN_RUNS
    return RunTimeSummary(
        program,
        llm,
        len(known.runs),
        len({identity for identity, _ in known.runs}),
        median(seconds for _, seconds in known.runs),
        upper_quantile(known.ratios) if enough else None,
        median(abs(ratio - 1) for ratio in known.ratios) if enough else None,
    )
