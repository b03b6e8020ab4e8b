"""Formats a status report for status.txt, with the same tables as `status` and a mark for each job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from gpu_scheduler.app.status_report import JobView, StatusReport
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState
from gpu_scheduler.core.model.units import format_share
from gpu_scheduler.views import marks
from gpu_scheduler.views.gpu_table import gpu_rows
from gpu_scheduler.views.job_table import COLUMNS, ROW_BUILDERS
from gpu_scheduler.views.layout import CappedList, Cell, Column, TableRow, render_table
from gpu_scheduler.views.progress_text import short_text
from gpu_scheduler.views.titles import title_of
from gpu_scheduler.views.wait_text import job_reason_text

#: Maximum number of waiting jobs, and maximum number of finished jobs, on the board.
MAX_WAITING, MAX_FINISHED = 50, 20
#: Width of the tables, which suits a wide window or an editor.
_WIDTH = 200
_COLUMNS = (*COLUMNS[:-1], Column("Progress, memory now/peak, or reason"))


def to_text(report: StatusReport) -> str:
    """Formats the board: a line of counts, the GPUs, then the running, waiting and finished jobs."""
    blocks = [[_header(report)]]
    if report.gpus:
        columns, rows = gpu_rows(report.gpus, with_allocated=True)
        blocks.append(render_table(columns, rows, _WIDTH))
    if jobs := list(_marked_rows(report)):
        head, *lines = render_table(_COLUMNS, [row for _, row in jobs], _WIDTH)
        marked = [f"{mark}  {line}" for (mark, _), line in zip(jobs, lines, strict=True)]
        blocks.append([f"{marks.NONE}  {head}", *marked])
    return "\n\n".join(map("\n".join, blocks)) + "\n"


def _header(report: StatusReport) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.now))
    scheduler = "scheduler stopped" if report.pid is None else f"scheduler pid {report.pid}"
    counts = ", ".join(f"{_count(report, states):,} {noun}" for noun, states in _LISTS)
    return f"{now}  {scheduler}  {counts}"


def _marked_rows(report: StatusReport) -> Iterator[tuple[str, TableRow]]:
    """Yields the mark and the row of each job, and a row with the number of jobs that a list omits."""
    for noun, states in _LISTS:
        jobs = [job for job in report.jobs if job.record.state in states]
        capped = CappedList(noun, [_row(job, report.now) for job in jobs], _count(report, states))
        yield from zip_longest(map(_mark, jobs), capped.capped(capped.line_count), fillvalue=marks.NONE)


_LISTS = (
    ("running", ACTIVE),
    ("queued", (JobState.QUEUED,)),
    ("held", (JobState.HELD,)),
    ("finished", (JobState.FINISHED,)),
)


def _count(report: StatusReport, states: Iterable[JobState]) -> int:
    return sum(map(report.listed_count, states))


def _row(job: JobView, now: float) -> TableRow:
    """Returns the job's row as in `status`, plus a named job's command and a running job's memory."""
    *cells, what, last = ROW_BUILDERS[job.record.state](job, now).cells
    if job.record.name:
        what = Cell(f"{what.text}: {title_of(None, job.record.text, job.record.spec_json)}")
    if job.record.state in ACTIVE and not job_reason_text(job):
        last = Cell("; ".join(filter(None, [short_text(job.progress), _memory_text(job)])))
    return TableRow((*cells, what, last))


def _mark(job: JobView) -> str:
    if job.record.state in ACTIVE:
        return marks.RUNNING
    if job.record.state in WAITING:
        return marks.RETRY if job.record.oom_retries_used else marks.WAITING
    return marks.of_outcome(job.record.outcome)


def _memory_text(job: JobView) -> str:
    """Formats a running job's memory use on each of its GPUs, and what it declared; "" without a GPU."""
    if not job.gpus:
        return ""
    each = (f"GPU {gpu}: {_now_and_peak(job.memory_used.get(gpu), job.peaks.get(gpu))}" for gpu in job.gpus)
    share = None if job.attempt is None else job.attempt.share_declared
    declared = [f"share {format_share(share)}"] if share else []
    declared += [f"{job.vram_declared} MiB"] if job.vram_declared is not None else []
    text = f"declared {', '.join(declared)}" if declared else "no declaration"
    return f"{', '.join(each)} MiB; {text}"


def _now_and_peak(now: int | None, peak: int | None) -> str:
    return "/".join("?" if mib is None else str(mib) for mib in (now, peak))
