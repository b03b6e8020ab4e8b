"""Reads and writes traces: CSV files with one job per row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gpu_scheduler.core.model.values import WHOLE, parse_share
from gpu_scheduler.core.scheduling.needs import ResourceSpec

COLUMNS = ("submit_s", "duration_s", "gpus", "share", "class")


@dataclass(frozen=True)
class TraceJob:
    """A job of a trace. share: thousandths of each of its GPUs. name: its workload class."""

    submit_s: float
    duration_s: float
    gpus: int = 1
    share: int = WHOLE
    name: str = ""

    @property
    def work_s(self) -> float:
        """The GPU-seconds that the job takes."""
        return self.duration_s * self.gpus * self.share / WHOLE

    @property
    def resources(self) -> ResourceSpec:
        """The resources that the line of the job would request."""
        return ResourceSpec(share=self.share, gpus=self.gpus)


def read_trace(path: Path) -> list[TraceJob]:
    """Returns the jobs of a CSV file, by submission. Raises ValueError with the row and the remedy."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        unknown = sorted(set(reader.fieldnames or ()) - set(COLUMNS))
        missing = sorted({"submit_s", "duration_s"} - set(reader.fieldnames or ()))
        if unknown or missing:
            named = ", ".join(
                [f"unknown column {one!r}" for one in unknown] + [f"no column {one!r}" for one in missing]
            )
            raise ValueError(f"{path}, line 1: {named}; the columns are {', '.join(COLUMNS)}")
        jobs = [_job(row, f"{path}, line {reader.line_num}") for row in reader]
    if not jobs:
        raise ValueError(f"{path}: no jobs")
    return sorted(jobs, key=lambda job: job.submit_s)


def _job(row: dict[str, str | None], place: str) -> TraceJob:
    try:
        submit, duration = float(row["submit_s"] or ""), float(row["duration_s"] or "")
        gpus, share = int(row.get("gpus") or 1), parse_share(row.get("share") or "1")
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if not (0 <= submit < 1e12 and 0 < duration < 1e12 and gpus >= 1 and 0 < share <= WHOLE):
        raise ValueError(
            f"{place}: submit_s must be at least 0, duration_s and gpus positive, share above 0, at most 1"
        )
    return TraceJob(submit, duration, gpus, share, row.get("class") or "")


def write_trace(jobs: Iterable[TraceJob], file: TextIO) -> None:
    """Writes jobs as CSV."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        writer.writerow(
            (f"{job.submit_s:.1f}", f"{job.duration_s:.1f}", job.gpus, job.share / WHOLE, job.name)
        )


def shortest_makespan_s(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Returns a lower bound of the seconds from the first submission to the last end, under any order.

    No job ends before its submission plus its duration. The work that is submitted from any time on takes at
    least its GPU-seconds divided by the number of GPUs, from that time on.
    """
    bound = work_s = 0.0
    for job in sorted(jobs, key=lambda job: -job.submit_s):
        work_s += job.work_s
        bound = max(bound, job.submit_s + job.duration_s, job.submit_s + work_s / gpus)
    return bound - min(job.submit_s for job in jobs)
