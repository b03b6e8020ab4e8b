"""Builds the table of jobs, one row each; queued jobs that wait for the same reason share a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.views.colours import CYAN, FAINT, OF_STATE, RED, YELLOW, of_outcome
from gpu_scheduler.views.lines import Cell, Column, Entry
from gpu_scheduler.views.report import JobShown
from gpu_scheduler.views.titles import in_common, ranges, title
from gpu_scheduler.views.words import ago, elapsed, memory_words, outcome_words, shortened, visible

COLUMNS = (
    Column("Job", is_right=True), Column("State"), Column("GPUs"), Column("Time", is_right=True),
    Column("What", is_flexible=True), Column("Last line, or reason"),
)  # fmt: skip
#: Maximum number of titles in a group that are compared for a common beginning.
_COMPARED = 100

#: Builds the row of a job; the second argument is the time of the report, in wall seconds.
Row = Callable[[JobShown, float], Entry]


def running(job: JobShown, now: float) -> Entry:
    """Returns the row of a job with an open attempt, with its last output line."""
    took = "" if job.started_at is None else elapsed(now - job.started_at)
    # The end of a progress bar is as informative as its beginning.
    parts = ["window closed"] * job.window_closed + [_text(job.last_line)] * bool(job.last_line)
    last = Cell("; ".join(parts), keeps_end=True) if parts else Cell(_text(job.reason), YELLOW)
    return _entry(job, Cell(job.state, OF_STATE.get(job.state, "")), took, last)


def queued(job: JobShown, _: float) -> Entry:
    """Returns the row of a queued job, with the reason."""
    return _entry(job, Cell(job.state), "", _why(job))


def held(job: JobShown, _: float) -> Entry:
    """Returns the row of a held job."""
    return _entry(job, Cell(job.state, OF_STATE[job.state]), "", Cell(_text(job.reason), YELLOW))


def finished(job: JobShown, now: float) -> Entry:
    """Returns the row of a finished job: its outcome, run time, and reason or age."""
    took = ""
    if job.started_at is not None and job.finished_at is not None:
        took = elapsed(job.finished_at - job.started_at)
    outcome = job.outcome or Outcome.ENDED.value
    colour = of_outcome(outcome)
    about = Cell(_text(job.reason), colour if colour == RED else "")
    if not job.reason and outcome == Outcome.FAILED.value:
        text = outcome_words(outcome, job.exit_code, job.signal)
        about = Cell(text.partition(", ")[2], colour)
    if not about.text:
        about = Cell(ago(job.finished_at, now), FAINT)
    return _entry(job, Cell(state_word(outcome), colour), took, about)


def state_word(outcome: str) -> str:
    """Returns the label of an outcome: "done", "failed", "timed out"."""
    return "done" if outcome == Outcome.COMPLETED.value else outcome.replace("_", " ")


def grouped(jobs: Iterable[JobShown], now: float) -> list[Entry]:
    """Returns rows for queued jobs in order; jobs with the same reason share the row of the first."""
    groups: dict[tuple[str | None, bool], list[JobShown]] = {}
    for job in jobs:
        groups.setdefault((job.reason, job.infeasible), []).append(job)
    return [queued(group[0], now) if len(group) == 1 else _group(group) for group in groups.values()]


def below(job: JobShown) -> list[str]:
    """Returns lines with the details of a job: memory, session, window, log, warnings."""
    closed = f"closed; `logs {job.id} -f` follows the job" if job.window_closed else None
    details = [
        ("memory", memory_words(job.peaks, job.vram_declared)),
        ("session", job.session),
        ("window", closed),
        ("log", job.log),
        *(("warning", text) for text in job.warnings),
    ]
    return [f"{name} {visible(text)}" for name, text in details if text]


def _entry(job: JobShown, state: Cell, time: str, about: Cell) -> Entry:
    cells = (Cell(str(job.id)), state, Cell(ranges(job.gpus)), Cell(time), Cell(title(job)), about)
    return Entry(cells)


def _group(jobs: Sequence[JobShown]) -> Entry:
    first = jobs[0]
    what = in_common([title(job) for job in jobs[:_COMPARED]])
    about = f" ({what})" if what else ""
    wait = f"wait for {_need(first)}" if first.need is not None and not first.infeasible else ""
    why = Cell(wait, YELLOW) if wait else Cell(f"wait, {_why(first).text}", _why(first).colour)
    ids = ranges([job.id for job in jobs])
    return Entry((Cell(f"{len(jobs):,} jobs "), why, Cell(f": {ids}{about}")), spans=True, count=len(jobs))


def _need(job: JobShown) -> str:
    # Imported here to keep `status` fast when no such queue is shown.
    from gpu_scheduler.core.needs import Need

    need = Need(**(job.need or {"count": 1}))
    half = Need(1, 500, assumed=need.assumed)
    return "half a GPU" if need == half else str(need)


def _why(job: JobShown) -> Cell:
    return Cell(_text(job.reason), RED if job.infeasible else YELLOW)


def _text(text: str | None) -> str:
    return visible(shortened(text or ""))


#: State -> the function that builds the row of a job in it.
ROWS: dict[JobState, Row] = {
    JobState.STARTING: running,
    JobState.RUNNING: running,
    JobState.STOPPING: running,
    JobState.QUEUED: queued,
    JobState.HELD: held,
    JobState.FINISHED: finished,
}
#: State -> the colour of its job count.
NUMBERS = {JobState.RUNNING: CYAN, JobState.HELD: YELLOW}
