"""`top`: the queue in the terminal, live, over a client of this machine or of another one.

The first part turns the answers of the client into cells, lines and texts; it knows no terminal. The second
part asks the client in threads. The third part is the app, which needs the package textual; it never waits.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from msgspec import Struct, convert
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Log, Static

from gpu_scheduler.client import Client, Job
from gpu_scheduler.core.model.gpu import Suspicion, format_ranges
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState
from gpu_scheduler.core.model.values import WHOLE, format_share
from gpu_scheduler.core.text import formatting
from gpu_scheduler.core.text.formatting import count_noun, format_age, format_elapsed, format_eta, safe_text
from gpu_scheduler.core.text.job_output import sanitized
from gpu_scheduler.errors import ClientError, SchedulerError
from gpu_scheduler.show import layout
from gpu_scheduler.show.gpu_text import suspicion_text
from gpu_scheduler.show.layout import Cell, display_width, truncate_end, truncate_middle
from gpu_scheduler.web.operations import MAX_PAGE, Json

# The text of the picture. All texts of users are made safe here.

Columns = Sequence[tuple[str, int, bool]]
_RED, _GREEN, _YELLOW, _BOLD = layout.RED, layout.GREEN, layout.YELLOW, layout.BOLD
#: The columns of the two tables: title, width and whether the text is on the right. The last column gets the
#: width that is left, 0, of which a column with the width -2 first gets two fifths.
GPU_COLUMNS = (("GPU", 3, True), ("State", 9, False), ("Share", 5, True), ("Load", 5, True),
               ("Memory", 16, False), ("In GiB: by job, others and free", 0, False))  # fmt: skip
JOB_COLUMNS = (("Job", 6, True), ("State", 11, False), ("Prio", 4, True), ("GPUs", 5, False),
               ("Time", 8, True), ("What", -2, False), ("Progress, or reason", 0, False))  # fmt: skip
_GPU_COLOURS = {"lost": _RED, "paused": _YELLOW, "suspect": _RED, "claimed": _YELLOW, "reserved": _YELLOW,
                "available": _GREEN}  # fmt: skip
_GRADES = {"bad": _RED, "warn": _YELLOW, "ok": _GREEN}
#: The order of the jobs.
_RANK = {**dict.fromkeys(ACTIVE, 0), JobState.QUEUED: 1, JobState.HELD: 2, JobState.FINISHED: 3}


def fitted(cells: Iterable[Cell], columns: Columns, width: int) -> list[Cell]:
    """Returns the cells of a row, padded or truncated so that they take `width` terminal columns."""
    fixed = sum(max(size, 0) + 1 for _, size, _ in columns) - 1
    left, found = max(0, width - fixed), []
    for cell, (_, size, is_right) in zip(cells, columns, strict=True):
        columns_of = size if size > 0 else left * 2 // 5 if size else left
        left -= 0 if size > 0 else columns_of
        text = truncate_middle(cell.text, columns_of) if size < 0 else truncate_end(cell.text, columns_of)
        pad = " " * (columns_of - display_width(text))
        found.append(cell._replace(text=(f"{pad}{text} " if is_right else f"{text}{pad} ")))
    return found


def job_cells(job: Json, now: float) -> list[Cell]:
    """Returns the row of a job, an element of "jobs" in docs/json.md. now: in seconds since 1970."""
    state, started, end = job["state"], job["started_at"], job["finished_at"]
    word, colour = state, layout.OF_STATE.get(state, "")
    if job["outcome"]:
        word, colour = job["outcome"].replace("_", " "), layout.of_outcome(job["outcome"])
    elif job["interrupted"]:
        word = "interrupted"
    is_active = state in ACTIVE
    took = "" if started is None or not (is_active or end) else format_elapsed((end or now) - started)
    place = (job["engine"] or {}).get("node") or format_ranges(job["gpus"]) or ("-" if is_active else "")
    about = Cell(_one_line(job["reason"]), "" if job["outcome"] else _RED if job["infeasible"] else _YELLOW)
    if is_active and not about.text:
        about = Cell(progress_text(job["progress"]))
    if state == JobState.FINISHED and not about.text:
        about = Cell(format_age(end, now), layout.FAINT)
    return [
        Cell(str(job["id"])), Cell(word, colour), Cell(str(job["priority"])), Cell(_one_line(place)),
        Cell(took), Cell(_one_line(title(job))), about,
    ]  # fmt: skip


def title(job: Json) -> str:
    """Returns the name of a job or, if it has none, its command."""
    return str(job["name"] or job["command"] or "")


def _one_line(text: str | None) -> str:
    return safe_text(text or "")


def progress_text(progress: Json | None) -> str:
    """Formats a progress: "53% (step 159 of 300) ETA 1h24m"; "" if nothing is known."""
    if progress is None or progress["unit"] is None:
        return ""
    percent = "" if progress["percent"] is None else f"{int(progress['percent'])}%"
    count = ""
    if progress["unit"] != "percent" and progress["current"] is not None:
        noun = "step" if progress["unit"] == "checkpoint" else progress["unit"]
        of = "" if progress["total"] is None else f" of {progress['total']:.15g}"
        count = f"{noun} {round(progress['current'], 2):.15g}{of}"
    done = f"{percent} ({count})" if percent and count else percent or count
    return done if progress["eta_s"] is None else f"{done} ETA {format_eta(progress['eta_s'])}"


def memory_parts(gpu: Json, jobs: Iterable[Json]) -> tuple[list[tuple[int, int]], int, int] | None:
    """Returns the memory of a GPU in MiB: by job, of others, and free; None if it is unknown.

    A job counts with the largest memory that it has used there, at most what is in use now.
    """
    used, total = gpu["memory_used_mib"], gpu["memory_total_mib"]
    if used is None or total is None:
        return None
    left, by_job = used, []
    for job in jobs:
        mib = min(left, job["peaks"].get(str(gpu["index"]), 0))
        by_job.append((job["id"], mib))
        left -= mib
    return by_job, left, max(0, total - used)


def gpu_cells(gpu: Json, jobs: Iterable[Json], now: float) -> list[Cell]:
    """Returns the row of a GPU, an element of "gpus" in docs/json.md. jobs: those that run on it."""
    parts, colour = memory_parts(gpu, jobs), _GPU_COLOURS.get(gpu["state"], "")
    bar, text = "?", "memory unknown"
    if parts is not None:
        by_job, others, free = parts
        of_jobs = sum(mib for _, mib in by_job)
        bar = memory_bar(of_jobs, others, gpu["memory_total_mib"], 16)
        shown = [(f"job {one}", mib) for one, mib in by_job] + [("others", others), ("free", free)]
        text = ", ".join(f"{what} {mib / 1024:.1f}" for what, mib in shown)
    load = "?" if gpu["load_percent"] is None else f"{gpu['load_percent']:.0f} %"
    why = gpu_reason(gpu, now)
    return [
        Cell(str(gpu["index"])), Cell(gpu["state"], colour),
        Cell(format_share(round(gpu["allocated"] * WHOLE))), Cell(load), Cell(bar, layout.CYAN),
        Cell(f"{why}; {text}" if why else text, colour if why else ""),
    ]  # fmt: skip


def memory_bar(of_jobs: int, others: int, total: int, width: int) -> str:
    """Draws the memory of a GPU: of jobs (█), of others (▒) and free (·)."""
    jobs, used = (round(width * min(1.0, one / max(1, total))) for one in (of_jobs, of_jobs + others))
    return f"{'█' * jobs}{'▒' * (used - jobs)}{'·' * (width - used)}"


def gpu_reason(gpu: Json, now: float) -> str:
    """Returns why a GPU is in its state, in the words of `status`; "" if nothing more is known."""
    found = [gpu["fault"], gpu["claims_problem"], gpu.get("pause_reason")]
    if gpu["suspicion"] is not None:
        found.append(suspicion_text(convert(gpu["suspicion"], Suspicion), now))
    for claim in gpu["claims"] or ():
        amount = "" if claim["mib"] is None else f"{claim['mib']} MiB "
        of = f"job {claim['job'] or '?'} of {claim['folder'] or '?'}" if claim["by_scheduler"] else "run"
        found.append(f"{amount}claimed by {of}, pid {claim['pid'] or '?'}, user {claim['user'] or '?'}")
    if gpu["reserved_for"]:
        found.append(f"then {format_ranges(gpu['reserved_for'])}")
    return "; ".join(_one_line(one) for one in found if one)


def summary_text(health: Json) -> str:
    """Formats the first line: "12 jobs: 2 running, 10 queued; scheduler pid 99"."""
    counts, pid = health["counts"], health["scheduler"]["pid"]
    parts = ", ".join(f"{counts[one]:,} {one}" for one in sorted(counts, key=lambda one: _RANK[one]))
    jobs = f"{count_noun(sum(counts.values()), 'job')}: {parts}" if parts else "No jobs yet"
    return jobs if pid is None else f"{jobs}; scheduler {formatting.pid_text(pid)}"


def banner_text(health: Json | None, problem: ClientError | None) -> str:
    """Returns what is wrong, with the remedy; "" if nothing is."""
    if problem is not None:
        remedy = "; write a new token into the file of --token-file, and start `top` again"
        return _one_line(f"Problem: {problem}{remedy if problem.status == 401 else ''}")
    lines = []
    if health is not None and health["scheduler"]["pid"] is None:
        lines.append("Scheduler not running; changes are recorded, and `start` carries them out")
    for one in (health or {}).get("health_issues", ()):
        until = "; no new jobs start until this is resolved" if one["blocks_starts"] else ""
        lines.append(_one_line(f"Problem: {one['subject']} {one['problem']}; {one['remedy']}{until}"))
    return "\n".join(lines)


def detail_lines(job: Json, why: Json | str, now: float) -> list[Cell]:
    """Returns everything about a job as lines. job: as `show --json`; why: as `why --json`, or its error."""
    one = job["job"]
    took = one["started_at"] and format_elapsed((one["finished_at"] or now) - one["started_at"])
    peaks = {int(gpu): mib for gpu, mib in one["peaks"].items()}
    memory = formatting.memory_text(peaks, one["vram_declared"])
    values = (
        ("state", " ".join(filter(None, [one["state"], one["outcome"]]))), ("reason", one["reason"]),
        ("name", one["name"]), ("command", one["command"]), ("needs", job["need"]),
        ("GPUs", format_ranges(one["gpus"])), ("priority", one["priority"]), ("time", took),
        ("attempts", one["attempts"]), ("exit code", one["exit_code"]), ("signal", one["signal"]),
        ("progress", progress_text(one["progress"])), ("memory", memory), ("log", one["log"]),
        ("session", one["session"]), ("source", one["source"]),
        *(("warning", text) for text in one["warnings"]),
    )  # fmt: skip
    found = [Cell(_one_line(f"job {one['id']} {title(one)}"), _BOLD), Cell("")]
    found += [Cell(_one_line(f"{name:<10}{text}")) for name, text in values if text not in (None, "")]
    found += [Cell(""), Cell("why", _BOLD)]
    if isinstance(why, str):
        return [*found, Cell(_one_line(why), _YELLOW)]
    for check in why["checks"]:
        head = f"{check['grade']:<6}{check['check']}: "
        found.append(Cell(_one_line(f"{head}{check['message']}"), _GRADES.get(check["grade"], "")))
        found += [Cell(_one_line(f"{'':<6}{check['remedy']}"))] if check["remedy"] else []
    if why["log_end"]:
        found += [Cell(""), Cell("End of its log", _BOLD), *(Cell(one) for one in log_lines(why["log_end"]))]
    return found


def log_lines(lines: Iterable[str]) -> list[str]:
    """Returns lines of a log as plain text, each with only the last frame of its progress bar."""
    frames = (line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines)
    plain = (sanitized(one.encode("utf-8", "replace")).decode("utf-8", "replace") for one in frames)
    return [safe_text(re.sub(r"\x1b\[[0-9;:]*m", "", one)) for one in plain]


def matches(job: Json, wanted: str) -> bool:
    """Returns whether a job has a text, in any case, in its number, state, name, command or reason."""
    shown = (job["id"], job["outcome"] or job["state"], job["name"], job["command"], job["reason"])
    return wanted.casefold() in "\n".join(str(one) for one in shown if one is not None).casefold()


# The client, asked in threads. These end with the process, because a stream may be silent for 45 s.

#: Seconds between two looks while nothing happens, the least between two looks, and those after which an
#: answer is late.
_SLOW_S, _LEAST_S, _LATE_S = 3.0, 1.0, 4.0
#: Maximum number of finished jobs, newest first.
_MAX_FINISHED = 100


def _in_thread(call: Callable[[], object]) -> None:
    threading.Thread(target=call, daemon=True).start()


class Picture(Struct, frozen=True):
    """The queue as the last look found it.

    jobs: in the order of the table. now: the time of the queue's machine, in seconds since 1970, at the
    monotonic time `at`. problem: the error that ended the look; the rest is then that of the last one.
    """

    jobs: Sequence[Json] = ()
    gpus: Sequence[Json] = ()
    health: Json | None = None
    now: float = 0.0
    at: float = 0.0
    problem: ClientError | None = None
    is_complete: bool = False


class Watcher:
    """Keeps a picture of the queue: reads all jobs once, then those that events name and those on the screen.

    show: takes each new picture, in a thread. visible: the ids on the screen, which the app sets; the reasons
    of waiting jobs change without events.
    """

    def __init__(self, client: Client, show: Callable[[Picture], object]) -> None:
        self.visible: Sequence[int] = ()
        self.asked_at: float | None = None
        self._client, self._show, self._picture = client, show, Picture()
        self._jobs: dict[int, Json] = {}
        self._changed: set[int] = set()
        self._pause_reasons: dict[int, str] = {}
        self._is_all_due, self._has_all = False, False
        self._lock, self._wake = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Starts the threads."""
        _in_thread(self._listen)
        _in_thread(self._look_again)

    def look(self, *changed: int) -> None:
        """Makes the next look due, at which it also reads these jobs."""
        with self._lock:
            self._changed.update(changed)
        self._wake.set()

    def _listen(self) -> None:
        while True:
            with suppress(ClientError):  # a look shows the error
                for event in self._client.events():
                    if event["event"] in ("reset", "forgotten"):
                        self._is_all_due = True
                    elif event["event"] in ("paused", "resumed"):
                        reason = event.get("reason") if event["event"] == "paused" else None
                        self._pause_reasons |= dict.fromkeys(event["gpus"], reason or "")
                    self.look(*([event["job"]] if event.get("job") else []))
            time.sleep(_SLOW_S)

    def _look_again(self) -> None:
        while True:
            self._wake.wait(_SLOW_S)
            self._wake.clear()
            began = self.asked_at = time.monotonic()
            try:
                self._look()
            except ClientError as error:  # shown with what the last look found
                self._is_all_due = True
                self._picture = replace(self._picture, problem=error)
                self._show(self._picture)
            self.asked_at = None
            time.sleep(max(0.0, began + _LEAST_S - time.monotonic()))

    def _look(self) -> None:
        if self._is_all_due:
            self._is_all_due = False
            self._read_all()
        with self._lock:
            changed, self._changed = self._changed, set()
        was_active = {one["id"] for one in self._jobs.values() if one["state"] in ACTIVE}
        active = {one["id"]: one for one in self._pages(ACTIVE)}
        again = (changed | was_active | set(self.visible)) - active.keys()
        found = {one["id"]: one for one in self._read(again)}
        self._jobs = {key: one for key, one in self._jobs.items() if key not in again} | found | active
        self._publish()

    def _read_all(self) -> None:
        """Reads all jobs, page by page. Shows each page while nothing else is known."""
        found, due = dict[int, Json](), 0.0
        for states, most in ((ACTIVE, None), ((JobState.FINISHED,), _MAX_FINISHED), (WAITING, None)):
            for one in self._pages(states, most):
                found[one["id"]] = one
                if not self._has_all and len(found) % MAX_PAGE == 0 and time.monotonic() > due:
                    self._jobs, due = dict(found), time.monotonic() + _LEAST_S
                    self._publish()
        self._jobs, self._has_all = found, True

    def _pages(self, states: Iterable[JobState], most: int | None = None) -> Iterator[Json]:
        page: Json = {}
        while not page or (page["next"] and most is None):
            order = "newest" if most is None else "finished"
            given = {"cursor": page.get("next"), "limit": most or MAX_PAGE, "order": order}
            page = self._client.call("jobs", state=sorted(states), **given)
            self.asked_at = time.monotonic()
            yield from page["jobs"]

    def _read(self, ids: Iterable[int]) -> Iterator[Json]:
        """Reads jobs, neighbours with one request, and yields those that exist."""
        left = sorted(ids)
        while left:
            near = [one for one in left if one > left[-1] - MAX_PAGE]
            yield from self._client.call("jobs", cursor=left[-1] + 1, limit=left[-1] - near[0] + 1)["jobs"]
            left = left[: -len(near)]

    def _publish(self) -> None:
        health, read = self._client.call("health"), self._client.call("gpus")
        for gpu in read["gpus"]:
            gpu["pause_reason"] = gpu["state"] == "paused" and self._pause_reasons.get(gpu["index"])
        at = time.monotonic()
        self._picture = Picture(self._in_order(), read["gpus"], health, read["now"], at, None, self._has_all)
        self._show(self._picture)

    def _in_order(self) -> list[Json]:
        def key(job: Json) -> tuple[int, float, int]:
            rank = _RANK[job["state"]]
            return rank, (0, job["priority"], job["priority"], -(job["finished_at"] or 0))[rank], job["id"]

        found = sorted((one for one in self._jobs.values() if not one["cleared"]), key=key)
        return found[: len(found) - max(0, sum(one["state"] == "finished" for one in found) - _MAX_FINISHED)]


def read_details(client: Client, job_id: int) -> list[Cell]:
    """Reads everything about a job. Raises ClientError."""
    job = client.call("job", job_id=job_id)
    try:
        return detail_lines(job, client.call("why_job", job_id=job_id), job["now"])
    except ClientError as error:  # the token may not read it
        return detail_lines(job, str(error), job["now"])


class LogTail:
    """The end of a job's log, read in a thread until `is_over`. new: the lines that nobody has taken yet.

    rest: the unfinished line. end: why nothing follows; "" while something may.
    """

    def __init__(self, job: Job) -> None:
        self.new: deque[str] = deque(maxlen=2000)
        self.rest, self.end, self.is_over = "", "", False
        self._job = job
        _in_thread(self._follow)

    def _follow(self) -> None:
        rest = ""
        try:
            for text in self._job.follow(last_bytes=1 << 18):
                if self.is_over:
                    return
                *lines, rest = (rest + text).split("\n")
                rest = rest[-(1 << 16) :]
                self.new.extend(log_lines(lines[-2000:]))
                [self.rest] = log_lines([rest])
            self.end = "; the job has ended"
        except ClientError as error:
            self.end = f"; {safe_text(str(error))}"


# The app.

#: The keys of `?`: the key, what it does and, on the last line of the screen, a short word.
KEYS = (
    ("Enter", "shows everything about the selected job, with `why`, or about the selected GPU", "details"),
    ("l", "shows the log of the job, and follows it", "log"),
    ("a", "opens the job's Screen session (Ctrl-A d returns); only on the queue's machine", "attach"),
    ("c", "cancels the job, after asking", "cancel"),
    ("r", "queues a finished or held job again, after asking", "retry"),
    ("h, u", "holds a queued job; releases it", ""),
    ("p", "changes the priority of a waiting job", ""),
    ("Tab", "selects among the GPUs instead of the jobs, and back", "GPUs"),
    ("Space", "among the GPUs: pauses the selected GPU, after asking, or resumes it", ""),
    ("/", "shows only the jobs with a text; Esc shows all again", "filter"),
    ("?", "lists the keys", "keys"),
    ("Ctrl-Z", "suspends `top`; `fg` returns", ""),
    ("q", "ends `top`, or closes what covers the tables", "quit"),
)
_STYLES = {_RED: "red", _GREEN: "green", _YELLOW: "yellow", layout.CYAN: "cyan", layout.FAINT: "dim",
           _BOLD: "bold", "": ""}  # fmt: skip
#: Signals that end this process after the terminal is restored.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_BACK: list[Any] = [("q,escape,question_mark", "app.pop_screen")]


def _text(*lines: Cell) -> Text:
    return Text("\n").join(Text(one.text, _STYLES[one.colour]) for one in lines)


def _line(kind: str, text: str = "") -> Static:
    return Static(_one(text), classes=kind)


def _one(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


class RowView(ScrollView, can_focus=True):
    """Rows of which only those on the screen are drawn. key: the member of a row that identifies it."""

    BINDINGS: ClassVar = [
        ("up,k", "move(-1)"), ("down,j", "move(1)"), ("pageup", "page(-1)"), ("pagedown", "page(1)"),
        ("home,g", "move(-999_999)"), ("end,G", "move(999_999)"), ("enter", "app.details"),
    ]  # fmt: skip

    def __init__(self, key: str, columns: Columns, cells: Callable[[Json], list[Cell]]) -> None:
        super().__init__()
        self.rows: Sequence[Json] = ()
        self.at = 0
        self._key, self._columns, self._cells = key, columns, cells

    @property
    def selected(self) -> Json | None:
        """The selected row, if this table has the focus; None if there are no rows."""
        return self.rows[self.at] if self.rows and self.screen.focused is self else None

    @property
    def shown(self) -> Sequence[Json]:
        """The rows on the screen."""
        return self.rows[self.scroll_offset.y :][: max(0, self.size.height - 1)]

    def show(self, rows: Sequence[Json], *, keeps: bool = True) -> None:
        """Replaces the rows. keeps: whether the same row stays selected; otherwise the same place."""
        was = self.rows[self.at][self._key] if self.rows and keeps else None
        if was is not None and [one[self._key] for one in rows[self.at : self.at + 1]] != [was]:
            self.at = next((n for n, one in enumerate(rows) if one[self._key] == was), self.at)
        self.rows = rows
        self.virtual_size = Size(0, len(rows) + 1)  # with the titles, which do not scroll
        self.action_move(0)

    def action_move(self, by: int) -> None:
        """Selects the row that is so many rows below, and scrolls to it."""
        self.at = max(0, min(len(self.rows) - 1, self.at + by))
        room, top = max(1, self.size.height - 1), self.scroll_offset.y
        if not top <= self.at < top + room:
            self.scroll_to(y=self.at if self.at < top else self.at - room + 1, animate=False)
        self.refresh()

    def action_page(self, by: int) -> None:
        """Selects the row that is so many screens below."""
        self.action_move(by * max(1, self.size.height - 2))

    def on_resize(self) -> None:
        """Keeps the selected row on the screen."""
        self.action_move(0)

    def render_line(self, y: int) -> Strip:
        """Returns the line `y` of the screen; the first one has the titles."""
        base, at, width = self.rich_style, self.scroll_offset.y + y - 1, self.scrollable_content_region.width
        if y and at >= len(self.rows):
            return Strip.blank(width, base)
        cells = self._cells(self.rows[at]) if y else [Cell(title, _BOLD) for title, *_ in self._columns]
        mark = Style(reverse=self.has_focus, bold=True) if y and at == self.at else Style()
        line = fitted(cells, self._columns, width)
        parts = [Segment(one.text, base + Style.parse(_STYLES[one.colour]) + mark) for one in line]
        return Strip(parts).adjust_cell_length(width, base + mark)


class Prompt(ModalScreen[str]):
    """Asks a question below the tables. Its result is the answer, "" after Esc."""

    BINDINGS: ClassVar = [("escape", "dismiss('')")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Yields the question and the field for the answer."""
        yield Static(Text(self._question), id="question")
        yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends with the answer."""
        event.stop()
        self.dismiss(event.value.strip())


class Lines(ModalScreen[None]):
    """Shows lines over the whole screen until q or Esc."""

    BINDINGS: ClassVar = _BACK

    def __init__(self, *lines: Cell) -> None:
        super().__init__()
        self._static = Static(_text(*lines), id="lines")

    def compose(self) -> ComposeResult:
        """Yields the lines."""
        yield VerticalScroll(self._static)
        yield _line("foot", "q goes back")

    def show(self, lines: Sequence[Cell]) -> None:
        """Replaces the lines."""
        self._static.update(_text(*lines))


class LogScreen(ModalScreen[None]):
    """Shows the end of a job's log, and follows it until q or Esc, with its unfinished line below."""

    BINDINGS: ClassVar = [*_BACK, ("l", "app.pop_screen")]

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._title, self._tail = f"log of job {job.id}", LogTail(job)
        self._lines, self._rest, self._foot = Log(max_lines=20_000), _line("line"), _line("foot")

    def compose(self) -> ComposeResult:
        """Yields the log and the lines below it."""
        yield from (self._lines, self._rest, self._foot)

    def on_mount(self) -> None:
        """Starts to take new lines."""
        self._lines.focus()
        self.set_interval(0.1, self._take)

    def on_unmount(self) -> None:
        """Ends the thread at the next output."""
        self._tail.is_over = True

    def _take(self) -> None:
        if new := [self._tail.new.popleft() for _ in range(len(self._tail.new))]:
            self._lines.write_lines(new)
        self._rest.update(_one(self._tail.rest))
        self._foot.update(_one(f"{self._title}{self._tail.end}; q goes back"))


class Top(App[None]):
    """The app. attach: opens the Screen session of a job on this terminal; None on another machine.

    ended_by: the signal that ended the app, if one did.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, ModalScreen, Static, RowView, Log, VerticalScroll {
        background: ansi_default; color: ansi_default;
    }
    RowView, Log, VerticalScroll { scrollbar-size: 1 1; height: 1fr; overflow-x: hidden; }
    .line, .foot { height: 1; }
    .foot { text-style: reverse; }
    #banner { color: ansi_red; text-style: bold; height: auto; max-height: 5; }
    Prompt { align: left bottom; background: transparent; }
    #question { text-style: reverse bold; height: auto; max-height: 4; }
    """
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "quit", priority=True), Binding("ctrl+z", "suspend_process", priority=True),
        ("q", "quit"), ("l", "log"), ("a", "attach"), ("c", "change('cancel', True)"),
        ("r", "change('retry', True)"), ("h", "change('hold')"), ("u", "change('release')"),
        ("p", "priority"), ("slash", "filter"), ("escape", "all"), ("question_mark", "keys"),
        ("space", "pause"),
    ]  # fmt: skip

    def __init__(self, client: Client, attach: Callable[[int], object] | None) -> None:
        super().__init__(ansi_color=True)
        self.ended_by: int | None = None
        self._client, self._open_session, self._picture = client, attach, Picture()
        self._watcher = Watcher(client, lambda found: self._in_app(self._show, found))
        self._gpus = RowView("index", GPU_COLUMNS, self._gpu_cells)
        self._jobs = RowView("id", JOB_COLUMNS, lambda job: job_cells(job, self._now()))
        self._head, self._banner, self._foot = _line("foot"), Static(id="banner"), _line("foot")
        self._filter = Input(placeholder="text of the jobs to show", compact=True)
        self._by_id: dict[int, Json] = {}
        self._said, self._wanted = "", ""

    def compose(self) -> ComposeResult:
        """Yields the lines and the tables from top to bottom."""
        self._filter.display = False
        yield from (self._head, self._banner, self._gpus, self._jobs, self._filter, self._foot)

    def on_mount(self) -> None:
        """Starts the threads and the clock, and restores the terminal at signals that end the process."""
        self._jobs.focus()
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
        self._watcher.start()
        self.set_interval(1.0, self._draw)
        self._draw()

    def _end(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    def _in_app(self, call: Callable[..., object], *given: Any) -> None:
        """Calls a function in the app's thread soon; does nothing after the app's end."""
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.call_later, call, *given)

    # What is shown.

    def _now(self) -> float:
        return self._picture.now + time.monotonic() - self._picture.at

    def _gpu_cells(self, gpu: Json) -> list[Cell]:
        return gpu_cells(gpu, [self._by_id[one] for one in gpu["jobs"] if one in self._by_id], self._now())

    def _show(self, found: Picture) -> None:
        self._picture, self._by_id = found, {one["id"]: one for one in found.jobs}
        self._gpus.show(found.gpus)
        self._show_jobs()

    def _show_jobs(self) -> None:
        jobs, wanted = self._picture.jobs, self._wanted
        jobs = [one for one in jobs if matches(one, wanted)] if wanted else jobs
        old = self._jobs.rows[self._jobs.at] if self._jobs.rows else {}
        new = self._by_id.get(old.get("id", 0), old)  # a job that has ended is below all others
        has_ended = new.get("state") == JobState.FINISHED != old.get("state")
        self._jobs.show(jobs, keeps=self._picture.is_complete and not has_ended)
        self._draw()

    def _draw(self) -> None:
        """Draws what changes with the time and all lines."""
        found, late_at, clock = self._picture, self._watcher.asked_at, time.strftime("%H:%M:%S")
        self._gpus.styles.height = min(max(2, self.size.height // 3), len(found.gpus) + 1)
        text = "Reading the queue …" if found.health is None else summary_text(found.health)
        text += "" if found.is_complete else f" {count_noun(len(found.jobs), 'job')} read"
        room = max(0, self.size.width - len(clock) - 1)
        self._head.update(Text(f"{truncate_end(text, room):<{room}} {clock}"))
        text = banner_text(found.health, found.problem)
        if found.problem is None and late_at is not None and time.monotonic() - late_at >= _LATE_S:
            text = f"No answer for {time.monotonic() - late_at:.0f} s; check the connection and `serve` there"
        self._banner.update(Text(text))
        self._banner.display = bool(text)
        text = f"{count_noun(len(self._jobs.rows), 'job')} with `{self._wanted}` (Esc: all)  "
        keys = "  ".join(f"{key} {short}" for key, _, short in KEYS if short)
        text = self._said or f"{text if self._wanted else ''}{keys}"
        self._foot.update(_one(safe_text(text)))
        self._watcher.visible = [one["id"] for one in self._jobs.shown if one["state"] in WAITING]
        self._gpus.refresh()
        self._jobs.refresh()

    def _say(self, *lines: Cell) -> None:
        """Shows an answer on the last line until the next key."""
        self._said = "; ".join(one.text for one in lines)
        self._draw()

    def on_key(self) -> None:
        """Shows the keys again in place of an answer."""
        self._said = ""

    # What the keys do. A question names the job or GPU that was selected when the key was pressed.

    def _job(self) -> Json | None:
        """Returns the selected job; None, with a hint, if the GPUs have the focus or there is none."""
        if (job := self._jobs.selected) is None:
            self._say(Cell("no job is selected; Tab changes between GPUs and jobs"))
        return job

    def _ask(self, call: Callable[[], list[Cell]], show: Callable[..., object]) -> None:
        """Calls the client in a thread, then shows what it returns or the error."""

        def run() -> None:
            try:
                lines = call()
            except SchedulerError as error:
                lines = [Cell(safe_text(str(error)), _RED)]
            self._in_app(show, *lines)
            self._watcher.look()

        _in_thread(run)

    def _change(self, question: str, operation: str, verb: str, **given: Any) -> None:
        """Changes a job or a GPU, after asking if there is a question; a priority is its answer."""

        def call() -> list[Cell]:
            answers = self._client.call(operation, verb=verb, **given)["answers"]
            self._watcher.look(*given.get("jobs", ()))
            kind = "GPU" if "gpus" in given else "job"
            found = ((f"{kind} {one[kind.lower()]}", one["text"] or one["result"]) for one in answers)
            return [Cell(text if text.startswith(name) else f"{name}: {text}") for name, text in found]

        def then(answer: str | None) -> None:
            if verb == "priority":
                given["priority"] = int(answer) if answer and answer.isdecimal() else None
            if given["priority"] is not None if verb == "priority" else answer in ("y", "Y", "yes"):
                self._say(Cell(f"{verb} …"))
                self._ask(call, self._say)

        if question:
            self.push_screen(Prompt(question), then)
        else:
            then("y")

    def action_change(self, verb: str, is_asked: bool = False) -> None:
        """Cancels, retries, holds or releases the selected job."""
        if (job := self._job()) is not None:
            question = f"{verb.capitalize()} {_named(job)}? [y/N]" if is_asked else ""
            self._change(question, "change_jobs", verb, jobs=[job["id"]])

    def action_priority(self) -> None:
        """Asks for the new priority of the selected job."""
        if (job := self._job()) is not None:
            question = f"New priority of {_named(job)}, now {job['priority']}; lower numbers start first:"
            self._change(question, "change_jobs", "priority", jobs=[job["id"]])

    def action_pause(self) -> None:
        """Pauses or resumes the selected GPU."""
        if (gpu := self._gpus.selected) is not None:
            verb = "resume" if gpu["state"] in ("paused", "suspect") else "pause"
            jobs = f", on which {format_ranges(gpu['jobs'])} go on" if gpu["jobs"] else ""
            question = f"Pause GPU {gpu['index']} ({safe_text(gpu['name'] or '')}){jobs}? [y/N]"
            self._change(question if verb == "pause" else "", "change_gpus", verb, gpus=[gpu["index"]])

    def action_details(self) -> None:
        """Shows everything about the selected job or GPU."""
        if (gpu := self._gpus.selected) is not None:
            values = {**gpu, "reason": gpu_reason(gpu, self._now())}
            texts = (
                f"{key:<24}{one}" for key, one in values.items() if one or (one == 0 and one is not False)
            )
            self.push_screen(Lines(*(Cell(_one_line(one)) for one in texts)))
        elif (job := self._job()) is not None:
            screen, number = Lines(Cell(f"Reading {_named(job)} …")), job["id"]
            self.push_screen(screen)
            self._ask(lambda: read_details(self._client, number), lambda *lines: screen.show(lines))

    def action_log(self) -> None:
        """Follows the log of the selected job."""
        if (job := self._job()) is not None:
            self.push_screen(LogScreen(Job(job["id"], self._client)))

    def action_attach(self) -> None:
        """Opens the Screen session of the selected job on this terminal, and comes back at its end."""
        if (job := self._job()) is not None and self._open_session is None:
            self._say(Cell("attach works only on the machine of the queue; l shows the log"))
        elif job is not None and self._open_session is not None:
            try:
                with self.suspend():
                    self._open_session(job["id"])
            except SchedulerError as error:
                self._say(Cell(str(error)))

    def action_filter(self) -> None:
        """Opens the field of the filter."""
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters the jobs while the user types."""
        if event.input is self._filter:
            self._wanted = event.value.strip()
            self._show_jobs()

    def on_input_submitted(self) -> None:
        """Closes the field and keeps the filter."""
        self._filter.display = False
        self._jobs.focus()

    def action_all(self) -> None:
        """Ends the filter."""
        self._filter.value = ""
        self.on_input_submitted()

    def action_keys(self) -> None:
        """Lists the keys."""
        self.push_screen(Lines(Cell("Keys", _BOLD), *(Cell(f"{key:<8}{what}") for key, what, _ in KEYS)))


def _named(job: Json) -> str:
    return f"job {job['id']} ({truncate_middle(_one_line(title(job)), 60)})"


def run(client: Client, attach: Callable[[int], object] | None) -> int:
    """Runs the app until q and returns the exit code; dies of a signal that ended the app.

    attach: as for `Top`. Raises ClientError if the queue does not answer.
    """
    client.health()  # an error here is printed before the screen changes
    app = Top(client, attach)
    app.run(mouse=False)  # the terminal's own mouse selects text
    if app.ended_by is not None:
        signal.signal(app.ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), app.ended_by)
    return app.return_code or 0
