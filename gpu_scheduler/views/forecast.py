"""Formats the forecast of the queue as text and JSON, for `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.explain.progress import output_option
from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.core.text.formatting import (
    and_more,
    count_noun,
    format_duration,
    format_elapsed,
    format_eta,
    format_jobs,
    masked_json,
    picked,
    safe_text,
)
from gpu_scheduler.views.job_text import finish_text, percent_text, progress_object, short_text
from gpu_scheduler.views.layout import Cell, Column, TableRow, render_table, wrap_text
from gpu_scheduler.views.tables import title
from gpu_scheduler.views.wait_text import held_text, job_reason_text

if TYPE_CHECKING:
    from gpu_scheduler.app.forecast import ForecastJob, ForecastView
    from gpu_scheduler.app.status import ProgressReport
    from gpu_scheduler.app.status_report import JobView


# Formats the progress of jobs and the time at which they will finish, for `eta`.


_ETA_COLUMNS = (
    Column("Job", is_right=True), Column("Done", is_right=True), Column("Time", is_right=True),
    Column("ETA", is_right=True), Column("Finish"), Column("What", is_flexible=True),
)  # fmt: skip


def eta_text(report: ProgressReport, width: int | None) -> str:
    """Formats the progress of jobs as a table with one row per job."""
    if not report.jobs:
        return "No job is running.\n"
    rows = [_eta_row(job, report.now) for job in report.jobs]
    return "\n".join(render_table(_ETA_COLUMNS, rows, width)) + "\n"


def eta_json(report: ProgressReport) -> str:
    """Formats the progress of jobs as JSON, as docs/json.md describes."""
    jobs = [
        {
            **picked(job.record, "id", "name", "state"),
            "started_at": job.started_at,
            "progress": progress_object(job.progress),
        }
        for job in report.jobs
    ]
    return masked_json({"now": report.now, "jobs": jobs}, 1) + "\n"


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


def _eta_row(job: JobView, now: float) -> TableRow:
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


#: Maximum number of jobs without an estimate that are listed.
_MAX_NAMED = 8
_COLUMNS = (
    Column("Job", is_right=True), Column("Start"), Column("In", is_right=True), Column("End"),
    Column("In", is_right=True), Column("90%"), Column("GPUs"), Column("What", is_flexible=True),
)  # fmt: skip
_REASON_COLUMNS = (Column("Job", is_right=True), Column("No forecast"))


def to_text(view: ForecastView, width: int | None) -> str:
    """Formats a table with one row per job, and notes. width: the maximum width, None = unlimited."""
    expected = [one for one in view.jobs if one.forecast is not None]
    others = [one for one in view.jobs if one.forecast is None]
    blocks = []
    if expected:
        blocks.append(render_table(_COLUMNS, [_row(one, view.now) for one in expected], width))
    if others:
        rows = [TableRow([Cell(str(one.job.record.id)), Cell(_why_not(one))]) for one in others]
        blocks.append(render_table(_REASON_COLUMNS, rows, width))
    if not view.jobs:
        blocks.append(["No job is running or waiting."])
    notes = [line for note in _notes(view) for line in ([note] if width is None else wrap_text(note, width))]
    return "\n\n".join("\n".join(block) for block in [*blocks, notes] if block) + "\n"


def _row(one: ForecastJob, now: float) -> TableRow:
    expected = one.forecast
    assert expected is not None
    is_running = one.job.record.state in ACTIVE
    cells = (
        str(one.job.record.id),
        finish_text(expected.start_at, now),
        "" if is_running else _range_text(expected.start_at, expected.start_upper_at, now),
        finish_text(expected.end_at, now),
        _in_text(expected.end_at - now),
        "?" if expected.end_upper_at is None else finish_text(expected.end_upper_at, now),
        ",".join(map(str, one.gpus)) or "-",
        title(one.job),
    )
    return TableRow([Cell(text) for text in cells])


def _range_text(at: float, upper_at: float | None, now: float) -> str:
    """Formats the time until a start. upper_at: if every run takes long; None if it then never starts."""
    usual, upper = _in_text(at - now), "?" if upper_at is None else _in_text(upper_at - now)
    return usual if usual == upper else f"{usual} to {upper}"


def _in_text(seconds: float) -> str:
    return "now" if seconds < 1 else format_eta(seconds)


def _why_not(one: ForecastJob) -> str:
    record = one.job.record
    reason = held_text(one.job) if record.state == "held" else job_reason_text(one.job) or record.state
    return safe_text(reason)


def _notes(view: ForecastView) -> Iterator[str]:
    forecasts = [(one.job.record.id, one.forecast) for one in view.jobs if one.forecast is not None]
    unknown = sorted(job_id for job_id, expected in forecasts if not expected.has_estimate)
    if forecasts:
        yield (
            "The times are those if every run takes the median time; what follows `to`, and 90%, if every run"
            " takes as long as nine of ten such runs at most."
        )
    if unknown:
        how = "10 minutes, or as long again as the time so far, which is a guess"
        if view.pooled.predicted_s is not None:
            median, upper = map(format_duration, (view.pooled.predicted_s, view.pooled.upper_s))
            how = f"the runs of all jobs here (median {median}, nine of ten at most {upper})"
        takes = "takes, so it counts" if len(unknown) == 1 else "take, so they count"
        yield f"No earlier run shows how long {_jobs_text(unknown)} {takes} as {how}."
    if any(one.job.record.state not in ACTIVE for one in view.jobs if one.forecast is not None):
        yield "Jobs that are submitted later are not included; they can delay these starts."
    if view.idle_share is not None and view.idle_until is not None:
        share, until = f"{100 * view.idle_share:.0f}%", finish_text(view.idle_until, view.now)
        yield f"The GPUs are idle for {share} of the time until the last job starts ({until})."
    if view.omitted:
        be = "is" if view.omitted == 1 else "are"
        yield f"{count_noun(view.omitted, 'queued job')} behind these {be} not shown (plan --all)."
    for issue in view.health_issues:
        yield f"No job starts until this is resolved: {safe_text(str(issue))}"
    if view.scheduler_pid is None and view.jobs:
        yield "No scheduler is running. The times assume that one starts now."


def _jobs_text(job_ids: Sequence[int]) -> str:
    return and_more(format_jobs(job_ids[:_MAX_NAMED]), len(job_ids) - _MAX_NAMED)


def to_json(view: ForecastView) -> str:
    """Formats the forecast as JSON, as docs/json.md describes."""
    value = {
        "now": view.now,
        "scheduler": view.scheduler_pid,
        "jobs": [_job_object(one) for one in view.jobs],
        "idle_share": None if view.idle_share is None else round(view.idle_share, 4),
        "idle_until": view.idle_until,
        "omitted": view.omitted,
    }
    return masked_json(value, 1) + "\n"


def _job_object(one: ForecastJob) -> dict[str, Any]:
    record, expected = one.job.record, one.forecast
    return {
        **picked(record, "id", "name", "state"),
        "start_at": None if expected is None else expected.start_at,
        "end_at": None if expected is None else expected.end_at,
        "start_p90_at": None if expected is None else expected.start_upper_at,
        "end_p90_at": None if expected is None else expected.end_upper_at,
        "gpus": list(one.gpus),
        "has_estimate": None if expected is None else expected.has_estimate,
        "no_forecast": _why_not(one) if expected is None else None,
    }
