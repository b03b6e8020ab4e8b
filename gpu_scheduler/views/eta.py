"""Formats the progress of jobs and the time at which they will finish, for `eta`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.core.progress.run_options import output_option
from gpu_scheduler.core.text.formatting import format_elapsed, format_eta, safe_text
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table
from gpu_scheduler.views.progress_text import finish_text, percent_text, progress_object, short_text
from gpu_scheduler.views.titles import title

if TYPE_CHECKING:
    from gpu_scheduler.app.job_progress import ProgressReport
    from gpu_scheduler.app.status_report import JobView

_COLUMNS = (
    Column("Job", is_right=True), Column("Done", is_right=True), Column("Time", is_right=True),
    Column("ETA", is_right=True), Column("Finish"), Column("What", is_flexible=True),
)  # fmt: skip


def to_text(report: ProgressReport, width: int | None) -> str:
    """Formats the progress of jobs as a table with one row per job."""
    if not report.jobs:
        return "No job is running.\n"
    rows = [_row(job, report.now) for job in report.jobs]
    return "\n".join(render_table(_COLUMNS, rows, width)) + "\n"


def to_json(report: ProgressReport) -> str:
    """Formats the progress of jobs as JSON, as docs/json.md describes."""
    jobs = [
        {
            "id": job.record.id,
            "name": job.record.name,
            "state": job.record.state,
            "started_at": job.started_at,
            "progress": progress_object(job.progress),
        }
        for job in report.jobs
    ]
    return json.dumps({"now": report.now, "jobs": jobs}, indent=1) + "\n"


def unknown_text(job: JobView) -> str:
    """Returns why nothing is known of the progress of a job, and the remedy."""
    record = job.record
    if record.state not in ACTIVE and not record.is_unwatched:
        return f"job {record.id} is {record.state}; only a running job has progress"
    return (
        f"nothing shows how far job {record.id} is: neither the last lines of its log nor a checkpoint under"
        f" its {output_option(record.spec)[0]}; a job can report its progress in the file that"
        " $GPU_SCHEDULER_PROGRESS names"
    )


def _row(job: JobView, now: float) -> TableRow:
    shown = job.progress
    left, finish = (None, None) if shown is None else (shown.remaining_s, shown.finish_at)
    cells = (
        str(job.record.id),
        "" if shown is None else percent_text(shown) or short_text(shown),
        "" if job.started_at is None else format_elapsed(now - job.started_at),
        "" if left is None else format_eta(left),
        "" if finish is None else finish_text(finish, now),
        safe_text(title(job)),
    )
    return TableRow([Cell(text or "?") for text in cells])
