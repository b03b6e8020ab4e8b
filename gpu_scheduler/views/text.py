"""Formats a status report as text: summary, problems, GPUs and one line per job, fitted to a screen."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace

from gpu_scheduler.core.states import ACTIVE, JobState, Outcome
from gpu_scheduler.views.colours import BOLD, RED, YELLOW, of_outcome
from gpu_scheduler.views.gpurows import gpu_rows
from gpu_scheduler.views.jobrows import COLUMNS, NUMBERS, ROWS, below, grouped, state_word
from gpu_scheduler.views.lines import Cell, Entry, Line, Listed, Screen, allot, printed, table
from gpu_scheduler.views.report import JobShown, Report
from gpu_scheduler.views.widths import columns_of, wrapped
from gpu_scheduler.views.words import ago, pid_words, shortened, visible

#: Maximum numbers of malformed lines and of warnings: without a limit on rows, and on a screen.
SHOWN, FEW = 20, 3
#: Minimum numbers of lines, however small the screen: running jobs, GPUs, queued, held, finished jobs.
_LEAST = (2, 3, 1, 1, 1)
_PIPE = Screen()


def to_text(
    report: Report,
    screen: Screen = _PIPE,
    *,
    everything: bool = False,
    verbose: bool = False,
    clock: str = "",
) -> str:
    """Formats the report. show_all: each queued job gets its own line; verbose: details such as paths
    follow each job; clock: text at the right end of the first line."""
    head = _head(report, screen, everything=everything, verbose=verbose, clock=clock)
    gpus = Listed("GPUs", gpu_rows(report.gpus)[1], len(report.gpus))
    lists = [gpus, *_job_lists(report, everything=everything, verbose=verbose)]
    given, is_tight = _allotted(lists, screen.rows, len(head))
    shown = [each.shortened(lines) for each, lines in zip(lists, given, strict=True)]
    blocks = [head]
    if report.gpus:
        blocks.append(table(gpu_rows(report.gpus)[0], shown[0], screen.width))
    elif report.jobs:
        blocks.append([[Cell("No GPUs detected yet.")]])
    jobs = [entry for entries in shown[1:] for entry in entries]
    if jobs:
        blocks.append(table(COLUMNS, jobs, screen.width))
    if is_tight and len(blocks) > 1:
        blocks[:2] = [[*blocks[0], *blocks[1]]]
    return "\n\n".join("\n".join(printed(line, screen) for line in block) for block in blocks) + "\n"


def _job_lists(report: Report, *, everything: bool, verbose: bool) -> Iterator[Listed]:
    """Yields the lists of running, queued, held and finished jobs."""
    numbers = _numbers(report)
    ended = sum(count for name, count in numbers.items() if not isinstance(name, JobState))
    for what, states, total in (
        ("running", ACTIVE, numbers[JobState.RUNNING]),
        ("queued", (JobState.QUEUED,), numbers[JobState.QUEUED]),
        ("held", (JobState.HELD,), numbers[JobState.HELD]),
        ("finished", (JobState.FINISHED,), ended),
    ):
        jobs = [job for job in report.jobs if JobState(job.state) in states]
        if what == "queued" and not everything and not verbose:
            entries = grouped(jobs, report.now)
        else:
            entries = [_entry(job, report.now, verbose=verbose) for job in jobs]
        if report.only_failed:
            yield Listed("failed", entries, total, "status --failed --all")
        else:
            yield Listed(what, entries, total)


def _entry(job: JobShown, now: float, *, verbose: bool) -> Entry:
    entry = ROWS[JobState(job.state)](job, now)
    return replace(entry, below=below(job)) if verbose else entry


def _allotted(lists: list[Listed], rows: int | None, head: int) -> tuple[list[int], bool]:
    """Returns the number of lines for each list, and whether to omit the blank line below the header."""
    wanted = [each.lines for each in lists]
    if rows is None:
        return wanted, False
    # Reserves two blank lines and the headers of two tables.
    room = rows - head - 4
    if sum(wanted) <= room:
        return wanted, False
    # Running jobs are cut last; each other list keeps at least a line that counts the omitted items.
    gpus, runs, *others = lists
    given = allot([runs, gpus, *others], _LEAST, room + 1)
    return [given[1], given[0], *given[2:]], True


def _numbers(report: Report) -> dict[JobState | Outcome, int]:
    """Counts jobs by state, and finished jobs by outcome, as they are now. Jobs whose end is not in the store
    yet, where they count as running, are moved to their new state."""
    counts = report.counts
    numbers: dict[JobState | Outcome, int] = {
        outcome: report.unsuccessful.get(outcome.value, 0) for outcome in Outcome
    }
    numbers[Outcome.COMPLETED] = counts.get(JobState.FINISHED.value, 0) - sum(numbers.values())
    numbers[JobState.RUNNING] = sum(counts.get(state.value, 0) for state in ACTIVE)
    for state in (JobState.QUEUED, JobState.HELD):
        numbers[state] = counts.get(state.value, 0)
    for job in report.jobs:
        if not job.recorded and JobState(job.state) not in ACTIVE:
            now = Outcome(job.outcome) if job.outcome else JobState(job.state)
            numbers[JobState.RUNNING] = max(0, numbers[JobState.RUNNING] - 1)
            numbers[now] += 1
    return numbers


def _head(report: Report, screen: Screen, *, everything: bool, verbose: bool, clock: str) -> list[Line]:
    first = [*_summary(report)]
    up = "" if report.pid is None else f"scheduler {pid_words(report.pid)}"
    used = sum(columns_of(cell.text) for cell in first)
    fits = screen.width is None or used + 2 + len(up) + len(clock) + 2 <= screen.width
    if up and fits:
        first.append(Cell(f"; {up}"))
        used += len(up) + 2
    if clock and screen.width is not None and used + 2 + len(clock) <= screen.width:
        first.append(Cell(f"{clock:>{screen.width - used}}"))
    lines: list[Line] = [first]
    if up and not fits:
        lines.append([Cell(up)])
    lines += _scheduler(report)
    lines += _places(report, verbose=verbose)
    for trouble in report.troubles:
        until = "; no new jobs start until this is resolved" if trouble.stops else ""
        text = f"Problem: {visible(str(trouble))}{until}"
        parts = [text] if screen.width is None else wrapped(text, screen.width)
        lines += [[Cell(part, RED)] for part in parts]
    most = None if everything else SHOWN if screen.rows is None else FEW
    lines += _limited("warnings", [f"Warning: {visible(text)}" for text in _warnings(report)], most)
    lines += _limited("malformed lines", list(_malformed(report)), most)
    return lines


def _summary(report: Report) -> Iterator[Cell]:
    numbers = _numbers(report)
    total = sum(numbers.values())
    if not total:
        yield Cell("No job has failed" if report.only_failed else "No jobs yet", BOLD)
        return
    yield Cell(f"{total:,} job{'' if total == 1 else 's'}: ", BOLD)
    between = ""
    for state, count in numbers.items():
        if count:
            is_state = isinstance(state, JobState)
            word = state.value if is_state else state_word(state.value)
            colour = NUMBERS.get(state, "") if isinstance(state, JobState) else of_outcome(state.value)
            yield Cell(between)
            yield Cell(f"{count:,} {word}", colour)
            between = ", "


def _scheduler(report: Report) -> Iterator[Line]:
    """Yields a line about the scheduler if none is running here."""
    if report.host is not None:
        about = "running processes cannot be checked from this host"
        yield [Cell(f"Scheduler on host {visible(report.host)}; {about}", YELLOW)]
    elif report.pid is None:
        sampled = [gpu.sampled_at for gpu in report.gpus if gpu.sampled_at is not None]
        stale = f"; GPU values as of {ago(max(sampled), report.now)}" if sampled else ""
        yield [Cell(f"Scheduler not running{stale}", YELLOW)]


def _places(report: Report, *, verbose: bool) -> Iterator[Line]:
    """Yields the paths if verbose, and in any case a jobs file that cannot be read."""
    if verbose:
        yield [Cell(f"State file  {visible(report.state_file)}", is_path=True)]
        yield [Cell(f"Data dir    {visible(report.data_dir)}", is_path=True)]
    for file in report.jobs_files:
        if verbose or file.problem:
            path = file.path if verbose else posixpath.basename(file.path)
            problem = f": {visible(file.problem)}" if file.problem else ""
            yield [Cell(f"Jobs file   {visible(path)}{problem}", YELLOW if problem else "", is_path=True)]


def _warnings(report: Report) -> list[str]:
    return [text for job in report.jobs if JobState(job.state) in ACTIVE for text in job.warnings]


def _malformed(report: Report) -> Iterator[str]:
    """Yields the malformed lines: number, reason, then the text. The accepted form follows only the first
    line that it applies to."""
    shown: set[str] = set()
    for bad in report.malformed:
        is_new = bad.accepted and bad.accepted not in shown
        accepted = f" (accepted: {visible(bad.accepted or '')})" if is_new else ""
        shown.add(bad.accepted or "")
        where = f"{visible(posixpath.basename(bad.path))}:{bad.number}"
        line = f"{visible(shortened(bad.reason))}{accepted}: {visible(shortened(bad.text))}"
        yield f"Malformed: {where}: {line}"


def _limited(what: str, lines: list[str], most: int | None) -> Iterator[Line]:
    shown = lines if most is None or len(lines) <= most else lines[: most - 1]
    yield from ([Cell(line, YELLOW)] for line in shown)
    if len(shown) < len(lines):
        yield [Cell(f"… and {len(lines) - len(shown):,} more {what} (status --all)", YELLOW)]
