"""Formats a status report as text that fits the screen: summary, problems, GPUs and one line per job."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState, Outcome
from gpu_scheduler.core.model.values import format_share
from gpu_scheduler.core.text.formatting import count_noun, format_age, limit_length, pid_text, safe_text
from gpu_scheduler.show import tables
from gpu_scheduler.show.job_text import job_warnings, short_text
from gpu_scheduler.show.job_views import JobView, StatusReport
from gpu_scheduler.show.layout import (
    BOLD,
    RED,
    YELLOW,
    CappedList,
    Cell,
    Column,
    StyledLine,
    TableRow,
    Viewport,
    allot_lines,
    display_width,
    of_outcome,
    render_line,
    render_table,
    table,
    wrap_text,
)
from gpu_scheduler.show.tables import (
    COLUMNS,
    ROW_BUILDERS,
    STATE_COUNT_COLOURS,
    detail_lines,
    gpu_rows,
    queued_rows,
    title_of,
)
from gpu_scheduler.show.wait_text import job_reason_text

#: Maximum number of malformed lines, and of warnings, if the number of rows is unlimited.
MAX_LISTED = 20
#: Maximum number of malformed lines, and of warnings, on a screen.
MAX_LISTED_ON_SCREEN = 3
#: Minimum number of lines on any screen for running jobs, GPUs, queued, held and finished jobs.
_MIN_LINES = (2, 3, 1, 1, 1)
_PIPE = Viewport()


def to_text(
    report: StatusReport,
    viewport: Viewport = _PIPE,
    *,
    show_all: bool = False,
    verbose: bool = False,
    clock: str = "",
) -> str:
    """Formats the report.

    show_all: give each queued job its own line; verbose: show details such as paths below each job; clock: a
    text for the right end of the first line.
    """
    head = _header(report, viewport, show_all=show_all, verbose=verbose, clock=clock)
    gpus = CappedList("GPUs", gpu_rows(report.gpus)[1], len(report.gpus))
    lists = [gpus, *_job_lists(report, show_all=show_all, verbose=verbose)]
    given, is_tight = _allot(lists, viewport.rows, len(head))
    shown = [each.capped(lines) for each, lines in zip(lists, given, strict=True)]
    blocks = [head]
    if report.gpus:
        blocks.append(table(gpu_rows(report.gpus)[0], shown[0], viewport.width))
    elif report.jobs:
        blocks.append([[Cell("No GPUs detected yet.")]])
    jobs = [entry for entries in shown[1:] for entry in entries]
    if jobs:
        blocks.append(table(COLUMNS, jobs, viewport.width))
    if is_tight and len(blocks) > 1:
        blocks[:2] = [[*blocks[0], *blocks[1]]]
    return "\n\n".join("\n".join(render_line(line, viewport) for line in block) for block in blocks) + "\n"


def _job_lists(report: StatusReport, *, show_all: bool, verbose: bool) -> Iterator[CappedList]:
    """Yields the lists of running, queued, held and finished jobs."""
    numbers = _job_counts(report)
    ended = sum(count for name, count in numbers.items() if not isinstance(name, JobState))
    for what, states, total in (
        ("running", ACTIVE, numbers[JobState.RUNNING]),
        ("queued", (JobState.QUEUED,), numbers[JobState.QUEUED]),
        ("held", (JobState.HELD,), numbers[JobState.HELD]),
        ("finished", (JobState.FINISHED,), ended),
    ):
        jobs = [job for job in report.jobs if job.record.state in states]
        if what == "queued" and not show_all and not verbose:
            entries = queued_rows(jobs, report.now)
        else:
            entries = [_table_row(job, report.now, verbose=verbose) for job in jobs]
        if report.is_failed_only:
            yield CappedList("failed", entries, total, "status --failed --all")
        else:
            yield CappedList(what, entries, total)


def _table_row(job: JobView, now: float, *, verbose: bool) -> TableRow:
    cells = ROW_BUILDERS[job.record.state](job, now)
    return TableRow(cells, detail_lines=detail_lines(job) if verbose else ())


def _allot(lists: list[CappedList], rows: int | None, head: int) -> tuple[list[int], bool]:
    """Returns the number of lines for each list, and whether to omit the blank line after the header."""
    wanted = [each.line_count for each in lists]
    if rows is None:
        return wanted, False
    # Two blank lines and the headers of two tables need four rows.
    room = rows - head - 4
    if sum(wanted) <= room:
        return wanted, False
    # Running jobs are omitted last. Every other list keeps at least the line that counts omitted items.
    gpus, runs, *others = lists
    given = allot_lines([runs, gpus, *others], _MIN_LINES, room + 1)
    return [given[1], given[0], *given[2:]], True


def _job_counts(report: StatusReport) -> dict[JobState | Outcome, int]:
    """Counts the jobs in each state, and the finished jobs with each outcome.

    In the store's counts, a job whose end is not recorded yet is running. Here it counts in its new state.
    """
    counts = report.counts
    numbers: dict[JobState | Outcome, int] = {
        outcome: report.unsuccessful_counts.get(outcome.value, 0) for outcome in Outcome
    }
    numbers[Outcome.COMPLETED] = report.listed_count(JobState.FINISHED) - sum(numbers.values())
    numbers[JobState.RUNNING] = sum(counts.get(state.value, 0) for state in ACTIVE)
    for state in (JobState.QUEUED, JobState.HELD):
        numbers[state] = counts.get(state.value, 0)
    for job in report.jobs:
        if not job.is_recorded and job.record.state not in ACTIVE:
            now = job.record.outcome or job.record.state
            numbers[JobState.RUNNING] = max(0, numbers[JobState.RUNNING] - 1)
            numbers[now] += 1
    return numbers


def _header(
    report: StatusReport, viewport: Viewport, *, show_all: bool, verbose: bool, clock: str
) -> list[StyledLine]:
    first = [*_summary_cells(report)]
    up = "" if report.pid is None else f"scheduler {pid_text(report.pid)}"
    used = sum(display_width(cell.text) for cell in first)
    fits = viewport.width is None or used + 2 + len(up) + len(clock) + 2 <= viewport.width
    if up and fits:
        first.append(Cell(f"; {up}"))
        used += len(up) + 2
    if clock and viewport.width is not None and used + 2 + len(clock) <= viewport.width:
        first.append(Cell(f"{clock:>{viewport.width - used}}"))
    lines: list[StyledLine] = [first]
    if up and not fits:
        lines.append([Cell(up)])
    if report.pid is None:
        sampled = [gpu.record.sampled_at for gpu in report.gpus if gpu.record.sampled_at is not None]
        stale = f"; GPU values as of {format_age(max(sampled), report.now)}" if sampled else ""
        lines.append([Cell(f"Scheduler not running{stale}", YELLOW)])
    if report.skipped:
        were = "jobs were" if report.skipped > 1 else "job was"
        text = f"{report.skipped:,} {were} skipped, because other jobs did not complete (status --all)"
        lines.append([Cell(text, YELLOW)])
    lines += _path_lines(report, verbose=verbose)
    for trouble in report.health_issues:
        text = issue_text(trouble)
        parts = [text] if viewport.width is None else wrap_text(text, viewport.width)
        lines += [[Cell(part, RED)] for part in parts]
    most = None if show_all else MAX_LISTED if viewport.rows is None else MAX_LISTED_ON_SCREEN
    lines += _capped_lines("warnings", [f"Warning: {safe_text(text)}" for text in _warnings(report)], most)
    lines += _capped_lines("malformed lines", list(_malformed_lines(report)), most)
    return lines


def issue_text(issue: HealthIssue) -> str:
    """Formats a problem with a location: "Problem: store /data is on a full disk: free space"."""
    until = "; no new jobs start until this is resolved" if issue.blocks_starts else ""
    return f"Problem: {safe_text(str(issue))}{until}"


def _summary_cells(report: StatusReport) -> Iterator[Cell]:
    numbers = _job_counts(report)
    total = sum(numbers.values())
    hidden = f" ({report.hidden_count:,} cleared)" if report.hidden_count else ""
    if not total:
        none = "No jobs" if hidden else "No jobs yet"
        yield Cell("No job has failed" if report.is_failed_only else f"{none}{hidden}", BOLD)
        return
    yield Cell(f"{total:,} job{'' if total == 1 else 's'}: ", BOLD)
    between = ""
    for state, count in numbers.items():
        if count:
            word = state.value.replace("_", " ")
            colour = (
                STATE_COUNT_COLOURS.get(state, "") if isinstance(state, JobState) else of_outcome(state.value)
            )
            yield Cell(between)
            yield Cell(f"{count:,} {word}", colour)
            between = ", "
    if hidden:
        yield Cell(hidden)


def _path_lines(report: StatusReport, *, verbose: bool) -> Iterator[StyledLine]:
    """Yields the paths if verbose; otherwise only the jobs files that cannot be read."""
    if verbose:
        yield [Cell(f"State file  {safe_text(report.state_file)}", is_path=True)]
        yield [Cell(f"Data dir    {safe_text(report.data_dir)}", is_path=True)]
    for file in report.jobs_files:
        if verbose or file.problem:
            path = file.path if verbose else posixpath.basename(file.path)
            problem = f": {safe_text(file.problem)}" if file.problem else ""
            yield [Cell(f"Jobs file   {safe_text(path)}{problem}", YELLOW if problem else "", is_path=True)]


def _warnings(report: StatusReport) -> list[str]:
    texts = [text for job in report.jobs if job.record.state in ACTIVE for text in job_warnings(job)]
    if report.redis_problem is not None:
        texts.insert(0, f"the Redis queue {report.redis_problem}; jobs here continue")
    for engine, count in report.unserved.items():
        jobs = f"{count_noun(count, 'job')} {'is' if count == 1 else 'are'} on {engine.capitalize()}"
        but = f"but the scheduler was started without --{engine}, so what happens there is not recorded"
        texts.insert(0, f"{jobs}, {but}; restart it with --{engine}")
    return texts


def _malformed_lines(report: StatusReport) -> Iterator[str]:
    """Yields a text for each malformed line, with its number, the reason and its content.

    The accepted form is shown only for the first line to which it applies.
    """
    shown: set[str] = set()
    for bad in report.malformed:
        is_new = bad.accepted_form and bad.accepted_form not in shown
        accepted = f" (accepted: {safe_text(bad.accepted_form or '')})" if is_new else ""
        shown.add(bad.accepted_form or "")
        where = f"{safe_text(posixpath.basename(bad.path))}:{bad.number}"
        line = f"{safe_text(limit_length(bad.problem))}{accepted}: {safe_text(limit_length(bad.text))}"
        yield f"Malformed: {where}: {line}"


def _capped_lines(noun: str, lines: list[str], limit: int | None) -> Iterator[StyledLine]:
    shown = lines if limit is None or len(lines) <= limit else lines[: limit - 1]
    yield from ([Cell(line, YELLOW)] for line in shown)
    if len(shown) < len(lines):
        yield [Cell(f"… and {len(lines) - len(shown):,} more {noun} (status --all)", YELLOW)]


# Formats a status report for status.txt, with the same tables as `status` and a mark for each job.


#: Maximum number of waiting jobs, and maximum number of finished jobs, on the board.
MAX_WAITING, MAX_FINISHED = 50, 20
#: Width of the tables, which suits a wide window or an editor.
_WIDTH = 200
_COLUMNS = (*COLUMNS[:-1], Column("Progress, memory now/peak, or reason"))


def board_text(report: StatusReport) -> str:
    """Formats the board: a line of counts, the GPUs, then the running, waiting and finished jobs."""
    blocks = [[_board_header(report)]]
    if report.gpus:
        columns, rows = gpu_rows(report.gpus, with_allocated=True)
        blocks.append(render_table(columns, rows, _WIDTH))
    if jobs := list(_marked_rows(report)):
        head, *lines = render_table(_COLUMNS, [row for _, row in jobs], _WIDTH)
        marked = [f"{mark}  {line}" for (mark, _), line in zip(jobs, lines, strict=True)]
        blocks.append([f"{tables.NONE}  {head}", *marked])
    return "\n\n".join(map("\n".join, blocks)) + "\n"


def _board_header(report: StatusReport) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.now))
    scheduler = "scheduler stopped" if report.pid is None else f"scheduler pid {report.pid}"
    counts = ", ".join(f"{_count(report, states):,} {noun}" for noun, states in _LISTS)
    return f"{now}  {scheduler}  {counts}"


def _marked_rows(report: StatusReport) -> Iterator[tuple[str, TableRow]]:
    """Yields the mark and the row of each job, and a row with the number of jobs that a list omits."""
    for noun, states in _LISTS:
        jobs = [job for job in report.jobs if job.record.state in states]
        capped = CappedList(noun, [_row(job, report.now) for job in jobs], _count(report, states))
        yield from zip_longest(map(_mark, jobs), capped.capped(capped.line_count), fillvalue=tables.NONE)


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
    cells = ROW_BUILDERS[job.record.state](job, now)
    if job.record.name:
        what = f"{cells.what.text}: {title_of(None, job.record.text, job.record.spec_json)}"
        cells = cells._replace(what=Cell(what))
    if job.record.state in ACTIVE and not job_reason_text(job):
        last = "; ".join(filter(None, [short_text(job.progress), _memory_text(job)]))
        cells = cells._replace(last=Cell(last))
    return TableRow(cells)


def _mark(job: JobView) -> str:
    if job.record.state in ACTIVE:
        return tables.RUNNING
    if job.record.state in WAITING:
        return tables.RETRY if job.record.oom_retries_used else tables.WAITING
    return tables.outcome_mark(job.record.outcome)


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
