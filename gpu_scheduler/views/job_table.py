"""Builds the table of jobs, with one row per job. Queued jobs that wait for the same reason share a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.gpu_list import format_ranges
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import (
    format_age,
    format_elapsed,
    limit_length,
    memory_text,
    safe_text,
)
from gpu_scheduler.views.colours import CYAN, FAINT, OF_STATE, RED, YELLOW, of_outcome
from gpu_scheduler.views.layout import Cell, Column, TableRow
from gpu_scheduler.views.need_text import need_text
from gpu_scheduler.views.parent_text import unmet_parents_text
from gpu_scheduler.views.progress_text import short_text
from gpu_scheduler.views.reason_text import outcome_text
from gpu_scheduler.views.stop_text import stop_text
from gpu_scheduler.views.titles import common_prefix, title
from gpu_scheduler.views.wait_text import job_reason_text
from gpu_scheduler.views.warnings import job_warnings

if TYPE_CHECKING:
    from gpu_scheduler.core.model.need import Need

COLUMNS = (
    Column("Job", is_right=True), Column("State"), Column("GPUs"), Column("Time", is_right=True),
    Column("What", is_flexible=True), Column("Last line, or reason"),
)  # fmt: skip
#: Maximum number of titles in a group of jobs that are compared to find a common beginning.
_MAX_COMPARED = 100

#: Builds the row of a job; the second argument is the time of the report, in seconds since 1970.
RowBuilder = Callable[[JobView, float], TableRow]


def running_row(job: JobView, now: float) -> TableRow:
    """Returns the row of a job with an open attempt, with its progress and its last output line."""
    took = "" if job.started_at is None else format_elapsed(now - job.started_at)
    progress, output = short_text(job.progress), _one_line(job.last_line)
    process = "" if job.record.adopted is None else f"pid {job.record.adopted.pid}"
    closed = "window closed" if job.window_closed else ""
    stopped = "" if job.stop is None else stop_text(job.stop, job.stop_in_s)
    parts = [part for part in (stopped, closed, process, progress, output) if part]
    # In the job's own progress bar, both the beginning and the end are informative.
    last = Cell("; ".join(parts), keep_end=not (progress or stopped))
    if not parts:
        last = Cell(_one_line(job_reason_text(job)), YELLOW)
    return _table_row(job, _state_cell(job), took, last)


def queued_row(job: JobView, _: float) -> TableRow:
    """Returns the row of a queued job, with the reason why it waits."""
    return _table_row(job, _state_cell(job), "", _reason_cell(job))


def held_row(job: JobView, _: float) -> TableRow:
    """Returns the row of a held job. An interrupted job is shown as such, with its run time."""
    is_interrupted = job.record.is_interrupted
    state = Cell(Outcome.INTERRUPTED.value, YELLOW) if is_interrupted else _state_cell(job)
    why = _one_line(job_reason_text(job))
    if not job.is_recorded:
        why = "; ".join(filter(None, [why, "not recorded yet"]))
    attempt, took = job.attempt, ""
    if job.record.held_by and attempt is not None and None not in (attempt.started_at, attempt.ended_at):
        took = format_elapsed((attempt.ended_at or 0) - (attempt.started_at or 0))
    return _table_row(job, state, took, Cell(why, YELLOW))


def finished_row(job: JobView, now: float) -> TableRow:
    """Returns the row of a finished job, with its outcome, run time, and reason or age."""
    took = ""
    if job.started_at is not None and job.record.finished_at is not None:
        took = format_elapsed(job.record.finished_at - job.started_at)
    outcome = job.record.outcome or Outcome.ENDED
    colour = of_outcome(outcome)
    about = Cell(_one_line(job_reason_text(job)), colour if colour == RED else "")
    if not about.text and outcome == Outcome.FAILED.value:
        text = outcome_text(outcome, job.record.exit_code, job.record.signal)
        about = Cell(text.partition(", ")[2], colour)
    if not about.text:
        about = Cell(format_age(job.record.finished_at, now), FAINT)
    if job.record.cleared_at is not None:
        about = about._replace(text=f"{about.text}; cleared")
    return _table_row(job, Cell(outcome.replace("_", " "), colour), took, about)


def queued_rows(jobs: Iterable[JobView], now: float) -> list[TableRow]:
    """Returns rows for queued jobs in order. Jobs with the same reason share the first one's row."""
    groups: dict[tuple[str | None, bool], list[JobView]] = {}
    for job in jobs:
        groups.setdefault((job_reason_text(job), job.infeasible), []).append(job)
    return [queued_row(group[0], now) if len(group) == 1 else _group_row(group) for group in groups.values()]


def detail_lines(job: JobView) -> list[str]:
    """Returns lines with the details of a job: memory, session, window, log, warnings."""
    closed = f"closed; `logs {job.record.id} -f` follows its output" if job.window_closed else None
    details = [
        ("memory", memory_text(job.peaks, job.vram_declared)),
        ("session", job.session),
        ("window", closed),
        ("log", job.log),
        *(("warning", text) for text in job_warnings(job)),
    ]
    return [f"{name} {safe_text(text)}" for name, text in details if text]


def _state_cell(job: JobView) -> Cell:
    return Cell(job.record.state.value, OF_STATE.get(job.record.state.value, ""))


def _table_row(job: JobView, state: Cell, time: str, last: Cell) -> TableRow:
    cells = (
        Cell(str(job.record.id)),
        state,
        Cell(format_ranges(job.gpus) or ("-" if job.record.state in ACTIVE else "")),
        Cell(time),
        Cell(title(job)),
        last,
    )
    return TableRow(cells)


def _group_row(jobs: Sequence[JobView]) -> TableRow:
    first = jobs[0]
    what = common_prefix([title(job) for job in jobs[:_MAX_COMPARED]])
    about = f" ({what})" if what else ""
    wait = _group_wait_text(first)
    why = (
        Cell(wait, YELLOW) if wait else Cell(f"wait, {_reason_cell(first).text}", _reason_cell(first).colour)
    )
    ids = format_ranges([job.record.id for job in jobs])
    cells = (Cell(f"{len(jobs):,} jobs "), why, Cell(f": {ids}{about}{_reservation_text(first)}"))
    return TableRow(cells, is_spanning=True, count=len(jobs))


def _group_wait_text(job: JobView) -> str:
    """Returns a text such as "wait for half a GPU"; "" if the reason of the job is not in such a form."""
    if job.wait is None or job.infeasible:
        return ""
    if job.wait.kind is WaitKind.PARENTS:
        return f"wait for {safe_text(unmet_parents_text(job.parents))}"
    return "" if job.wait.need is None else f"wait for {_need_text(job.wait.need)}"


def _reservation_text(job: JobView) -> str:
    """Returns the reserved GPUs that the job cannot use, for the end of a line; "" if there are none."""
    if job.wait is None or job.infeasible or job.wait.need is None or not job.wait.obstacles:
        return ""
    # This import is here to keep `status` fast if the reason lists no GPU.
    from gpu_scheduler.views.reservation_text import reserved_gpus_text

    reserved = reserved_gpus_text(job.wait.obstacles, job.as_of)
    return f"; {reserved}" if reserved else ""


def _need_text(need: Need) -> str:
    half = replace(need, count=1, share=500, alone=False, vram=None, exclusive=False, learned=False)
    return "half a GPU" if need == half else need_text(need)


def _reason_cell(job: JobView) -> Cell:
    return Cell(_one_line(job_reason_text(job)), RED if job.infeasible else YELLOW)


def _one_line(text: str | None) -> str:
    return safe_text(limit_length(text or ""))


#: The function that builds the row of a job, by the job's state.
ROW_BUILDERS: dict[JobState, RowBuilder] = {
    JobState.STARTING: running_row,
    JobState.RUNNING: running_row,
    JobState.STOPPING: running_row,
    JobState.QUEUED: queued_row,
    JobState.HELD: held_row,
    JobState.FINISHED: finished_row,
}
#: The colours of the job counts, by state.
STATE_COUNT_COLOURS = {JobState.RUNNING: CYAN, JobState.HELD: YELLOW}
