"""Builds the tables of jobs and of GPUs. Queued jobs that wait for the same reason share a row."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.core.model.values import format_share
from gpu_scheduler.core.text.formatting import (
    format_age,
    format_elapsed,
    format_memory,
    limit_length,
    masked_words,
    memory_text,
    safe_text,
)
from gpu_scheduler.show import job_views
from gpu_scheduler.show.gpu_text import mode_lines, state_lines
from gpu_scheduler.show.job_text import engine_text, job_warnings, outcome_text, short_text
from gpu_scheduler.show.job_views import GpuView, JobView
from gpu_scheduler.show.layout import (
    CYAN,
    FAINT,
    GREEN,
    OF_STATE,
    RED,
    YELLOW,
    Cell,
    Column,
    TableRow,
    of_outcome,
)
from gpu_scheduler.show.wait_text import (
    job_reason_text,
    need_text,
    reserved_gpus_text,
    stop_text,
    unmet_parents_text,
)

# Builds the title of a job in a list.
#
# The title is the job's name. A job without a name is shown by its script and arguments, or by its command if
# it has no script.


def title(job: JobView) -> str:
    """Returns the full title of a job as a line that is safe to print."""
    found = title_of(job.record.name, job.record.text, job.record.spec_json)
    source = job.record.source
    return f"{found} ({safe_text(source)})" if source.startswith("redis:") else found


def title_of(name: str | None, text: str, spec: str) -> str:
    """Returns the title of a job with these values. text: its line; spec: its JobSpec as JSON."""
    return safe_text(limit_length(name or _program_text(text, spec)))


def _program_text(text: str, spec_json: str) -> str:
    """Returns the script and arguments of a CSV line, or the text of any other line."""
    spec = json.loads(spec_json)
    script = spec.get("script")
    if script is None:
        return text
    return " ".join([posixpath.basename(script), *map(shlex.quote, masked_words(spec.get("arguments", ())))])


def common_prefix(titles: Sequence[str]) -> str:
    """Returns the words with which all titles begin, and `…` if the titles differ; "" if there are none."""
    words = [text.split(" ") for text in titles]
    count = 0
    for nth in zip(*words, strict=False):
        if len(set(nth)) > 1:
            break
        count += 1
    same = " ".join(words[0][:count])
    return same if not same or all(len(each) == count for each in words) else f"{same} …"


# Defines the marks of jobs on the status board and in the lines that `start` prints.


RUNNING, WAITING, RETRY, SUCCESS, FAILURE = "▶", "·", "↻", "✓", "✗"
WARNING, NONE = "!", " "


def outcome_mark(outcome: str | None) -> str:
    """Returns the mark of a finished job."""
    return SUCCESS if outcome in (Outcome.COMPLETED.value, Outcome.ENDED.value) else FAILURE


# Builds the table of jobs, with one row per job. Queued jobs that wait for the same reason share a row.


COLUMNS = (
    Column("Job", is_right=True), Column("State"), Column("GPUs"), Column("Time", is_right=True),
    Column("What", is_flexible=True), Column("Last line, or reason"),
)  # fmt: skip
#: Maximum number of titles in a group of jobs that are compared to find a common beginning.
_MAX_COMPARED = 100

#: Builds the row of a job; the second argument is the time of the report, in seconds since 1970.
RowBuilder = Callable[[JobView, float], "JobCells"]


class JobCells(NamedTuple):
    """The cells of the row of a job, in the order of COLUMNS."""

    job: Cell
    state: Cell
    gpus: Cell
    time: Cell
    what: Cell
    last: Cell


def running_row(job: JobView, now: float) -> JobCells:
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
    return _cells(job, _state_cell(job), took, last)


def queued_row(job: JobView, _: float) -> JobCells:
    """Returns the row of a queued job, with the reason why it waits."""
    return _cells(job, _state_cell(job), "", _reason_cell(job))


def held_row(job: JobView, _: float) -> JobCells:
    """Returns the row of a held job. An interrupted job is shown as such, with its run time."""
    is_interrupted = job.record.is_interrupted
    state = Cell(Outcome.INTERRUPTED.value, YELLOW) if is_interrupted else _state_cell(job)
    why = _one_line(job_reason_text(job))
    if not job.is_recorded:
        why = "; ".join(filter(None, [why, "not recorded yet"]))
    attempt, took = job.attempt, ""
    if job.record.held_by and attempt is not None and None not in (attempt.started_at, attempt.ended_at):
        took = format_elapsed((attempt.ended_at or 0) - (attempt.started_at or 0))
    return _cells(job, state, took, Cell(why, YELLOW))


def finished_row(job: JobView, now: float) -> JobCells:
    """Returns the row of a finished job, with its outcome, run time, and reason or age."""
    took = ""
    # The job may have ended long after its last attempt, for example when it was cancelled in the queue.
    end = (job.attempt and job.attempt.ended_at) or job.record.finished_at
    if job.started_at is not None and end is not None:
        took = format_elapsed(end - job.started_at)
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
    return _cells(job, Cell(outcome.replace("_", " "), colour), took, about)


def queued_rows(jobs: Iterable[JobView], now: float) -> list[TableRow]:
    """Returns rows for queued jobs in order. Jobs with the same reason share the first one's row."""
    groups: dict[tuple[str | None, bool], list[JobView]] = {}
    for job in jobs:
        groups.setdefault((job_reason_text(job), job.infeasible), []).append(job)
    return [_group_row(one) if one[1:] else TableRow(queued_row(one[0], now)) for one in groups.values()]


def detail_lines(job: JobView) -> list[str]:
    """Returns lines with the details of a job: memory, session, window, log, warnings."""
    closed = f"closed; `logs {job.record.id} -f` follows its output" if job.window_closed else None
    details = [
        ("memory", memory_text(job.peaks, job.vram_declared)),
        (
            "engine",
            None if job.attempt is None or job.engine is None else engine_text(job.attempt, job.engine),
        ),
        ("session", job.session),
        ("window", closed),
        ("log", job.log),
        *(("warning", text) for text in job_warnings(job)),
    ]
    return [f"{name} {safe_text(text)}" for name, text in details if text]


def _state_cell(job: JobView) -> Cell:
    return Cell(job.record.state.value, OF_STATE.get(job.record.state.value, ""))


def _cells(job: JobView, state: Cell, time: str, last: Cell) -> JobCells:
    return JobCells(
        Cell(str(job.record.id)),
        state,
        Cell(_place(job)),
        Cell(time),
        Cell(title(job)),
        last,
    )


def _place(job: JobView) -> str:
    """Returns the GPUs of a job, or the node on which its engine runs or ran it."""
    node = "" if job.engine is None else safe_text(job.engine.node)
    return node or format_ranges(job.gpus) or ("-" if job.record.state in ACTIVE else "")


def _group_row(jobs: Sequence[JobView]) -> TableRow:
    first = jobs[0]
    what = common_prefix([title(job) for job in jobs[:_MAX_COMPARED]])
    about = f" ({what})" if what else ""
    wait, reason = _group_wait_text(first), _reason_cell(first)
    why = Cell(wait, YELLOW) if wait else reason._replace(text=f"wait, {reason.text}")
    ids = format_ranges([job.record.id for job in jobs])
    cells = (Cell(f"{len(jobs):,} jobs "), why, Cell(f": {ids}{about}{_reservation_text(first)}"))
    return TableRow(cells, is_spanning=True, count=len(jobs))


def _group_wait_text(job: JobView) -> str:
    """Returns a text such as "wait for half a GPU"; "" if the reason of the job is not in such a form."""
    if job.wait is None or job.infeasible:
        return ""
    if job.wait.kind is WaitKind.PARENTS:
        return f"wait for {safe_text(unmet_parents_text(job.parents))}"
    need = job.wait.need
    if need is None:
        return ""
    half = replace(need, count=1, share=500, alone=False, vram=None, exclusive=False, learned=False)
    return f"wait for {'half a GPU' if need == half else need_text(need)}"


def _reservation_text(job: JobView) -> str:
    """Returns the reserved GPUs that the job cannot use, for the end of a line; "" if there are none."""
    if job.wait is None or job.infeasible or job.wait.need is None or not job.wait.obstacles:
        return ""
    reserved = reserved_gpus_text(job.wait.obstacles, job.as_of)
    return f"; {reserved}" if reserved else ""


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


# Builds the table of the managed GPUs, with one row per GPU.


GPU_COLOURS = {
    job_views.LOST: RED,
    job_views.PAUSED: YELLOW,
    job_views.SUSPECT: RED,
    job_views.CLAIMED: YELLOW,
    job_views.RESERVED: YELLOW,
    job_views.AVAILABLE: GREEN,
}


def gpu_rows(
    views: Sequence[GpuView], *, with_allocated: bool = False
) -> tuple[list[Column], list[TableRow]]:
    """Returns the columns and the rows of the table.

    with_allocated: show the column of allocated memory even if no job declared memory.
    """
    by_memory = with_allocated or any(gpu.has_declared_memory for gpu in views)
    columns = [
        Column("GPU", is_right=True), Column("State"), Column("Share", is_right=True),
        *([Column("Allocated", is_right=True)] if by_memory else []),
        Column("Memory", is_right=True), Column("Load", is_right=True), Column("Jobs"), Column("Name"),
    ]  # fmt: skip
    return columns, [_row(gpu, by_memory) for gpu in views]


def _row(gpu: GpuView, by_memory: bool) -> TableRow:
    load = "?" if gpu.record.last.load_percent is None else f"{gpu.record.last.load_percent:.0f} %"
    name = safe_text(gpu.record.last.name)
    if gpu.record.fault is not None and not gpu.record.fault.is_lost:
        name = f"{safe_text(str(gpu.record.fault))} ({name})"
    allocated = [Cell(format_memory(gpu.allocated_mib))] if by_memory else []
    return TableRow(
        [
            Cell(str(gpu.record.index)),
            Cell(gpu.state, GPU_COLOURS.get(gpu.state, "")),
            Cell(format_share(gpu.share)),
            *allocated,
            Cell(_memory_text(gpu)),
            Cell(load),
            Cell(_jobs_text(gpu)),
            Cell(name),
        ],
        detail_lines=[safe_text(text) for text in _detail_lines(gpu)],
    )


def _jobs_text(gpu: GpuView) -> str:
    """Formats the jobs on the GPU, and the jobs for which it is reserved: "3-5, then 7", "then 7"."""
    then = f"then {format_ranges(gpu.reserved_for)}" if gpu.reserved_for else ""
    return ", ".join(text for text in (format_ranges(gpu.jobs), then) if text) or "-"


def _detail_lines(gpu: GpuView) -> list[str]:
    """Returns lines about the modes of the GPU and about what keeps jobs from it."""
    record, now = gpu.record, gpu.record.sampled_at or 0.0
    why = state_lines(record.index, gpu.pause_reason, record.suspicion, now, gpu.claims, gpu.claims_problem)
    return [*mode_lines(record.last), *why]


def _memory_text(gpu: GpuView) -> str:
    """Formats used and total memory: "15.6 / 24.0 GiB", or in MiB for a GPU with less than 1 GiB."""
    total = format_memory(gpu.record.total_mib)
    used = format_memory(gpu.record.last.used_mib)
    if gpu.record.last.used_mib is not None and total.endswith(" GiB"):
        used = f"{gpu.record.last.used_mib / 1024:.1f}"
    return f"{used} / {total}"
