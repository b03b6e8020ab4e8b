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
from gpu_scheduler.core.text.formatting import (
    count_noun,
    format_age,
    format_elapsed,
    format_eta,
    format_memory,
    pid_text,
    safe_text,
)
from gpu_scheduler.core.text.job_output import sanitized
from gpu_scheduler.errors import ClientError, SchedulerError
from gpu_scheduler.show.gpu_text import suspicion_text
from gpu_scheduler.show.layout import (
    BOLD,
    CYAN,
    FAINT,
    GREEN,
    OF_STATE,
    RED,
    YELLOW,
    Cell,
    display_width,
    of_outcome,
    truncate_end,
    truncate_middle,
)  # fmt: skip
from gpu_scheduler.web.operations import MAX_PAGE, Json

# The text of the picture. All texts of users are made safe here.

#: The columns of the two tables: title, width (0: what is left) and whether the text is on the right. A
#: column with a minimum is left out on a narrower terminal.
GPU_COLUMNS = (("GPU", 3, True), ("State", 9, False), ("Share", 5, True), ("Load", 5, True),
               ("Memory", 16, False), ("In GiB: by job, others and free", 0, False))  # fmt: skip
JOB_COLUMNS = (("Job", 6, True), ("State", 11, False), ("Prio", 4, True), ("GPUs", 5, False),
               ("Time", 8, True), ("What", -2, False), ("Progress, or reason", 0, False))  # fmt: skip
_GPU_COLOURS = {"lost": RED, "paused": YELLOW, "suspect": RED, "claimed": YELLOW, "reserved": YELLOW,
                "available": GREEN}  # fmt: skip
_GRADES = {"bad": RED, "warn": YELLOW, "ok": GREEN}
#: The order of the jobs.
_RANK = {**dict.fromkeys(ACTIVE, 0), JobState.QUEUED: 1, JobState.HELD: 2, JobState.FINISHED: 3}


def header(columns: Sequence[tuple[str, int, bool]], width: int) -> list[Cell]:
    """Returns the cells of the line with the titles of a table."""
    return fitted([Cell(title, BOLD) for title, _, _ in columns], columns, width)


def fitted(cells: Iterable[Cell], columns: Sequence[tuple[str, int, bool]], width: int) -> list[Cell]:
    """Returns the cells of a row, padded or truncated so that they take `width` terminal columns."""
    fixed = sum(max(size, 0) + 1 for _, size, _ in columns) - 1
    left, found = max(0, width - fixed), []
    for cell, (_, size, is_right) in zip(cells, columns, strict=True):
        # The column "What" gets two fifths of what is left, and the last one the rest.
        columns_of = size if size > 0 else left * 2 // 5 if size else left
        left -= 0 if size > 0 else columns_of
        text = truncate_middle(cell.text, columns_of) if size < 0 else truncate_end(cell.text, columns_of)
        pad = " " * (columns_of - display_width(text))
        found.append(cell._replace(text=(f"{pad}{text} " if is_right else f"{text}{pad} ")))
    return found


def job_cells(job: Json, now: float) -> list[Cell]:
    """Returns the row of a job, an element of "jobs" in docs/json.md. now: in seconds since 1970."""
    state, started, end = job["state"], job["started_at"], job["finished_at"]
    word, colour = state, OF_STATE.get(state, "")
    if job["outcome"]:
        word, colour = job["outcome"].replace("_", " "), of_outcome(job["outcome"])
    elif job["interrupted"]:
        word = "interrupted"
    is_active = state in ACTIVE
    took = "" if started is None or not (is_active or end) else format_elapsed((end or now) - started)
    place = (job["engine"] or {}).get("node") or format_ranges(job["gpus"]) or ("-" if is_active else "")
    about = Cell(_one_line(job["reason"]), "" if job["outcome"] else RED if job["infeasible"] else YELLOW)
    if is_active and not about.text:
        about = Cell(progress_text(job["progress"]))
    if state == JobState.FINISHED and not about.text:
        about = Cell(format_age(end, now), FAINT)
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
        Cell(format_share(round(gpu["allocated"] * WHOLE))), Cell(load), Cell(bar, CYAN), Cell(f"{why}; {text}" if why else text, colour if why else ""),
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
        what = (
            "run" if not claim["by_scheduler"] else f"job {claim['job'] or '?'} of {claim['folder'] or '?'}"
        )
        found.append(f"{amount}claimed by {what}, pid {claim['pid'] or '?'}, user {claim['user'] or '?'}")
    if gpu["reserved_for"]:
        found.append(f"then {format_ranges(gpu['reserved_for'])}")
    return "; ".join(_one_line(one) for one in found if one)


def summary_text(health: Json) -> str:
    """Formats the first line: "12 jobs: 2 running, 10 queued; scheduler pid 99"."""
    counts = {state: count for state, count in health["counts"].items() if count}
    parts = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items(), key=_rank_of_count))
    jobs = f"{count_noun(sum(counts.values()), 'job')}: {parts}" if parts else "No jobs yet"
    pid = health["scheduler"]["pid"]
    return jobs if pid is None else f"{jobs}; scheduler {pid_text(pid)}"


def _rank_of_count(item: tuple[str, int]) -> int:
    return _RANK[JobState(item[0])]


def banner_text(health: Json | None, problem: ClientError | None) -> str:
    """Returns what is wrong, with the remedy; "" if nothing is."""
    if problem is not None:
        is_token = problem.status == 401
        remedy = (
            "\nPut the new token into the file of --token-file, and start `top` again." if is_token else ""
        )
        return f"Problem: {safe_text(str(problem), keep_line_breaks=True)}{remedy}"
    lines = []
    if health is not None and health["scheduler"]["pid"] is None:
        lines.append(
            "Scheduler not running; nothing starts and changes wait until `gpu-scheduler start` runs"
        )
    for one in (health or {}).get("health_issues", ()):
        until = "; no new jobs start until this is resolved" if one["blocks_starts"] else ""
        lines.append(_one_line(f"Problem: {one['subject']} {one['problem']}; {one['remedy']}{until}"))
    return "\n".join(lines)


def detail_lines(job: Json, why: Json | str, now: float) -> list[Cell]:
    """Returns everything about a job as lines. job: as `show --json`; why: as `why --json`, or its error."""
    one = job["job"]
    took = one["started_at"] and format_elapsed((one["finished_at"] or now) - one["started_at"])
    peaks = ", ".join(f"GPU {gpu} {format_memory(mib)}" for gpu, mib in sorted(one["peaks"].items()))
    values = (
        ("state", " ".join(filter(None, [one["state"], one["outcome"]]))), ("reason", one["reason"]),
        ("name", one["name"]), ("command", one["command"]), ("needs", job["need"]),
        ("GPUs", format_ranges(one["gpus"])), ("priority", one["priority"]), ("time", took),
        ("attempts", one["attempts"]), ("exit code", one["exit_code"]), ("signal", one["signal"]),
        ("progress", progress_text(one["progress"])), ("peaks", peaks), ("log", one["log"]),
        ("session", one["session"]), ("source", one["source"]),
        *(("warning", text) for text in one["warnings"]),
    )  # fmt: skip
    found = [Cell(_one_line(f"job {one['id']} {title(one)}"), BOLD), Cell("")]
    found += [Cell(_one_line(f"{name:<10}{text}")) for name, text in values if text not in (None, "")]
    found += [Cell(""), Cell("why", BOLD)]
    if isinstance(why, str):
        return [*found, Cell(_one_line(why), YELLOW)]
    for check in why["checks"]:
        head = f"{check['grade']:<6}{check['check']}: "
        found.append(Cell(_one_line(f"{head}{check['message']}"), _GRADES.get(check["grade"], "")))
        found += [Cell(_one_line(f"{'':<6}{check['remedy']}"))] if check["remedy"] else []
    if why["log_end"]:
        found += [Cell(""), Cell("End of its log", BOLD), *(Cell(one) for one in log_lines(why["log_end"]))]
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
        for run in (self._listen, self._look_again):
            threading.Thread(target=run, daemon=True).start()

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
                        reason = event["reason"] if event["event"] == "paused" else None
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
            except ClientError as error:
                self._is_all_due = True
                self._publish(problem=error)
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
        found: dict[int, Json] = {}
        for states, most in ((ACTIVE, None), ((JobState.FINISHED,), _MAX_FINISHED), (WAITING, None)):
            for at, one in enumerate(self._pages(states, most)):
                found[one["id"]] = one
                is_due = at % MAX_PAGE == 0 and time.monotonic() - self._picture.at >= _LEAST_S
                if is_due and not self._has_all:
                    self._jobs = dict(found)
                    self._publish()
        self._jobs, self._has_all = found, True

    def _pages(self, states: Iterable[JobState], most: int | None = None) -> Iterator[Json]:
        page: Json = {"next": None}
        while page is not None:
            given = {"cursor": page["next"], "limit": min(MAX_PAGE, most or MAX_PAGE)}
            page = self._client.call("jobs", state=sorted(states), **given)
            self.asked_at = time.monotonic()
            yield from page["jobs"]
            if not page["next"] or most is not None:
                return

    def _read(self, ids: Iterable[int]) -> Iterator[Json]:
        """Reads jobs, neighbours with one request, and yields those that exist."""
        left = sorted(ids)
        while left:
            near = [one for one in left if one > left[-1] - MAX_PAGE]
            yield from self._client.call("jobs", cursor=left[-1] + 1, limit=left[-1] - near[0] + 1)["jobs"]
            left = left[: -len(near)]

    def _publish(self, problem: ClientError | None = None) -> None:
        last = self._picture
        if problem is not None:
            known = (last.jobs, last.gpus, last.health, last.now, last.at)
            self._picture = Picture(*known, problem, last.is_complete)
        else:
            read = self._client.call("gpus")
            gpus = [
                gpu | {"pause_reason": gpu["state"] == "paused" and self._pause_reasons.get(gpu["index"])}
                for gpu in read["gpus"]
            ]
            health, jobs = self._client.call("health"), self._in_order()
            self._picture = Picture(jobs, gpus, health, read["now"], time.monotonic(), None, self._has_all)
        self._show(self._picture)

    def _in_order(self) -> list[Json]:
        def key(job: Json) -> tuple[int, float, int]:
            rank = _RANK[job["state"]]
            return rank, (0, job["priority"], job["priority"], -(job["finished_at"] or 0))[rank], job["id"]

        found = sorted((one for one in self._jobs.values() if not one["cleared"]), key=key)
        return found[: len(found) - max(0, sum(one["state"] == "finished" for one in found) - _MAX_FINISHED)]


# The app.

#: The keys of `?`: the key, what it does and, on the last line of the screen, a short word.
KEYS = (
    ("Enter", "shows everything about the selected job or GPU, with `why`", "details"),
    ("l", "shows the log of the job, and follows it", "log"),
    ("a", "opens the job's Screen session (Ctrl-A d returns); only on the queue's machine", "attach"),
    ("c", "cancels the job, after asking", "cancel"),
    ("r", "queues a finished or held job again, after asking", "retry"),
    ("h, u", "holds a queued job; releases it", ""),
    ("p", "changes the priority of a waiting job", ""),
    ("Tab", "selects among the GPUs instead of the jobs, and back", "GPUs"),
    ("Space", "among the GPUs: pauses the selected GPU, after asking, or resumes it", ""),
    ("/", "shows only jobs with a text; Esc shows all again", "filter"),
    ("?", "lists the keys", "keys"),
    ("Ctrl-Z", "suspends `top`; `fg` returns", ""),
    ("q", "ends `top`, or closes what covers the tables", "quit"),
)
_STYLES = {RED: "red", GREEN: "green", YELLOW: "yellow", CYAN: "cyan", FAINT: "dim", BOLD: "bold", "": ""}
#: Signals that end this process after the terminal is restored.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class Table(ScrollView, can_focus=True):
    """Rows of which only those on the screen are made. The selected row stays the same one in a new picture.

    key: the member of a row that identifies it.
    """

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)"), Binding("down,j", "move(1)"), Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"), Binding("home,g", "end(0)"), Binding("end,G", "end(-1)"),
        Binding("enter", "app.details"), Binding("space", "app.pause"),
    ]  # fmt: skip

    def __init__(
        self,
        name: str,
        key: str,
        columns: Sequence[tuple[str, int, bool]],
        cells: Callable[[Json], list[Cell]],
    ) -> None:
        super().__init__(id=name)
        self.rows: Sequence[Json] = ()
        self.at = 0
        self._key, self._columns, self._cells = key, columns, cells

    @property
    def selected(self) -> Json | None:
        """The selected row; None if there are no rows."""
        return self.rows[self.at] if self.rows else None

    @property
    def shown(self) -> Sequence[Json]:
        """The rows on the screen."""
        top = self.scroll_offset.y
        return self.rows[top : top + max(0, self.size.height - 1)]

    def show(self, rows: Sequence[Json]) -> None:
        """Replaces the rows."""
        was = self.selected
        self.rows = rows
        if was is not None and not (self.at < len(rows) and rows[self.at][self._key] == was[self._key]):
            found = (n for n, one in enumerate(rows) if one[self._key] == was[self._key])
            self.at = next(found, max(0, min(self.at, len(rows) - 1)))
        self.virtual_size = Size(0, len(rows) + 1)  # with the titles, which do not scroll
        self._show_selected()

    def action_move(self, by: int) -> None:
        """Selects the row that is so many rows below."""
        self.at = max(0, min(len(self.rows) - 1, self.at + by))
        self._show_selected()

    def action_page(self, by: int) -> None:
        """Selects the row that is so many screens below."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_end(self, at: int) -> None:
        """Selects the first row, 0, or the last one, -1."""
        self.action_move(-len(self.rows) if at == 0 else len(self.rows))

    def _show_selected(self) -> None:
        room, top = max(1, self.size.height - 1), self.scroll_offset.y
        if not top <= self.at < top + room:
            self.scroll_to(y=self.at if self.at < top else self.at - room + 1, animate=False)
        self.refresh()

    def on_resize(self) -> None:
        """Keeps the selected row on the screen."""
        self._show_selected()

    def render_line(self, y: int) -> Strip:
        """Returns the line `y` of the screen."""
        base, at, width = self.rich_style, self.scroll_offset.y + y - 1, self.size.width
        if y and at >= len(self.rows):
            return Strip.blank(width, base)
        line = fitted(self._cells(self.rows[at]), self._columns, width) if y else header(self._columns, width)
        mark = Style(reverse=self.has_focus, bold=True) if y and at == self.at else Style.null()
        parts = [Segment(one.text, base + Style.parse(_STYLES[one.colour]) + mark) for one in line]
        return Strip(parts).adjust_cell_length(width, base + mark)


class Prompt(ModalScreen[str]):
    """Asks a question on one line. Its result is the answer, "" for none. is_choice: only `y` is a yes."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss('')")]

    def __init__(self, question: str, *, is_choice: bool = True) -> None:
        super().__init__()
        self._question, self._is_choice = question, is_choice

    def compose(self) -> ComposeResult:
        """Yields the question and, if it is no choice, the field for the answer."""
        yield Static(self._question + (" [y/N]" if self._is_choice else ""), markup=False, id="question")
        if not self._is_choice:
            yield Input(type="integer", id="answer", compact=True)

    def on_key(self, event: Any) -> None:
        """Answers a choice: any key but `y` means no."""
        if self._is_choice:
            event.stop()
            self.dismiss("y" if event.character in ("y", "Y") else "")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answers with the text."""
        self.dismiss(event.value.strip())


class Lines(ModalScreen[None]):
    """Shows lines over the whole screen until q or Esc."""

    BINDINGS: ClassVar = [
        Binding("q,escape,question_mark", "app.pop_screen"),
        Binding("ctrl+z", "app.suspend_process"),
    ]

    def __init__(self, lines: Sequence[Cell]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yields the lines."""
        with VerticalScroll():
            yield Static(_text(self._lines), id="lines")
        yield Static("q goes back", markup=False, classes="foot")

    def show(self, lines: Sequence[Cell]) -> None:
        """Replaces the lines."""
        self._lines = lines
        if self.is_mounted:
            self.query_one("#lines", Static).update(_text(lines))


def _text(lines: Sequence[Cell]) -> Text:
    return Text("\n").join(Text(one.text, _STYLES[one.colour]) for one in lines)


class LogScreen(ModalScreen[None]):
    """Shows the end of a job's log, and follows it until q or Esc, with its unfinished line below."""

    BINDINGS: ClassVar = [Binding("q,escape,l", "app.pop_screen"), Binding("ctrl+z", "app.suspend_process")]

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._new: deque[str] = deque(maxlen=2000)
        self._rest, self._end, self._is_over = "", "", False

    def compose(self) -> ComposeResult:
        """Yields the log and the last lines."""
        yield Log(max_lines=20_000)
        yield Static("", markup=False, id="rest")
        yield Static(f"log of job {self._job.id}; q goes back", markup=False, classes="foot")

    def on_mount(self) -> None:
        """Starts to follow the log."""
        self.query_one(Log).focus()
        threading.Thread(target=self._follow, daemon=True).start()
        self.set_interval(0.1, self._draw)

    def on_unmount(self) -> None:
        """Makes the thread end at the next output."""
        self._is_over = True

    def _follow(self) -> None:
        try:
            for text in self._job.follow(last_bytes=1 << 18):
                if self._is_over:
                    return
                *lines, rest = (self._rest + text).split("\n")
                self._new.extend(log_lines(lines[-2000:]))
                self._rest = rest[-(1 << 16) :]
            self._end = "; the job has ended"
        except ClientError as error:
            self._end = f"; {safe_text(str(error))}"

    def _draw(self) -> None:
        new = [self._new.popleft() for _ in range(len(self._new))]
        if new:
            self.query_one(Log).write_lines(new)
        [rest] = log_lines([self._rest])
        self.query_one("#rest", Static).update(Text(rest, no_wrap=True, overflow="ellipsis"))
        foot = f"log of job {self._job.id}{self._end}; q goes back"
        self.query_one(".foot", Static).update(Text(foot, no_wrap=True, overflow="ellipsis"))


class Top(App[None]):
    """The app. attach: opens the Screen session of a job on this terminal; None on another machine.

    ended_by: the signal that ended the app, if one did.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, ModalScreen, Static, Table, Log, VerticalScroll { background: ansi_default; color: ansi_default; }
    Table, Log, VerticalScroll { scrollbar-size: 1 1; }
    #gpus { height: 3; overflow-x: hidden; }
    #jobs { height: 1fr; overflow-x: hidden; }
    #head, #foot, .foot, #rest { height: 1; }
    #head, .foot, #foot { text-style: reverse; }
    #banner { color: ansi_red; text-style: bold; max-height: 5; display: none; }
    #filter { display: none; }
    Log, VerticalScroll { height: 1fr; }
    Prompt { align: center bottom; background: transparent; }
    #question { text-style: reverse bold; height: auto; max-height: 4; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit"), Binding("ctrl+c", "quit", priority=True), Binding("ctrl+z", "suspend_process"),
        Binding("l", "log"), Binding("a", "attach"), Binding("c", "change('cancel', True)"),
        Binding("r", "change('retry', True)"), Binding("h", "change('hold', False)"),
        Binding("u", "change('release', False)"), Binding("p", "priority"), Binding("slash", "filter"),
        Binding("escape", "all"), Binding("question_mark", "keys"),
    ]  # fmt: skip

    def __init__(self, client: Client, attach: Callable[[int], object] | None) -> None:
        super().__init__(ansi_color=True)
        self.ended_by: int | None = None
        self._client, self._open_session = client, attach
        self._picture = Picture()
        self._watcher = Watcher(client, lambda found: self._in_app(self._show, found))
        self._gpus = Table("gpus", "index", GPU_COLUMNS, self._gpu_cells)
        self._jobs = Table("jobs", "id", JOB_COLUMNS, lambda job: job_cells(job, self._now()))
        self._by_id: dict[int, Json] = {}
        self._said, self._wanted = "", ""

    def compose(self) -> ComposeResult:
        """Yields the lines and the tables from top to bottom."""
        yield Static("", markup=False, id="head")
        yield Static("", markup=False, id="banner")
        yield self._gpus
        yield self._jobs
        yield Input(placeholder="text of the jobs to show", id="filter", compact=True)
        yield Static("", markup=False, id="foot")

    def on_mount(self) -> None:
        """Starts the threads and the clock, and restores the terminal at signals that end the process."""
        self._jobs.focus()
        loop = asyncio.get_running_loop()
        for number in _ENDING if threading.current_thread() is threading.main_thread() else ():
            loop.add_signal_handler(number, self._end, number)
        self._watcher.start()
        self.set_interval(1.0, self._tick)
        self._tick()

    def _end(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    def _in_app(self, call: Callable[..., object], *given: Any) -> None:
        """Calls a function in the app's thread soon; does nothing after the app's end."""
        loop = self._loop
        with suppress(RuntimeError):
            if loop is not None:
                loop.call_soon_threadsafe(self.call_later, call, *given)

    def _now(self) -> float:
        return self._picture.now + time.monotonic() - self._picture.at

    def _gpu_cells(self, gpu: Json) -> list[Cell]:
        return gpu_cells(gpu, [self._by_id[one] for one in gpu["jobs"] if one in self._by_id], self._now())

    # What is shown.

    def _show(self, found: Picture) -> None:
        self._picture = found
        self._by_id = {one["id"]: one for one in found.jobs}
        self._gpus.show(found.gpus)
        self._show_jobs()
        self._tick()

    def _show_jobs(self) -> None:
        wanted = self._wanted
        jobs = self._picture.jobs
        self._jobs.show([one for one in jobs if matches(one, wanted)] if wanted else jobs)

    def on_resize(self) -> None:
        """Gives the GPUs up to a third of the screen."""
        self._tick()

    def _tick(self) -> None:
        found, late = self._picture, self._watcher.asked_at
        most = max(2, self.size.height // 3)
        self._gpus.styles.height = min(most, len(found.gpus) + 1)
        clock = time.strftime("%H:%M:%S")
        head = "Reading the queue …" if found.health is None else summary_text(found.health)
        if found.health is not None and not found.is_complete:
            head += f"; {count_noun(len(found.jobs), 'job')} read"
        room = max(0, self.size.width - len(clock) - 1)
        self._put("head", f"{truncate_end(head, room):<{room}} {clock}")
        text = banner_text(found.health, found.problem)
        if found.problem is None and late is not None and (waited := time.monotonic() - late) >= _LATE_S:
            text = f"No answer for {waited:.0f} s; check the connection, and that `serve` runs there"
        banner = self.screen_stack[0].query_one("#banner", Static)
        banner.update(Text(text))
        banner.display = bool(text)
        keys = "  ".join(f"{key} {short}" for key, _, short in KEYS if short)
        shown = (
            f"{len(self._jobs.rows):,} jobs with {safe_text(self._wanted)!r} (Esc: all)  "
            if self._wanted
            else ""
        )
        self._put("foot", self._said or f"{shown}{keys}")
        self._watcher.visible = [one["id"] for one in self._jobs.shown if one["state"] != JobState.FINISHED]
        self._gpus.refresh()
        self._jobs.refresh()

    def _put(self, name: str, text: str) -> None:
        line = self.screen_stack[0].query_one(f"#{name}", Static)
        line.update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _say(self, text: str) -> None:
        """Shows an answer on the last line until the next key."""
        self._said = safe_text(text)
        self._tick()

    def on_key(self) -> None:
        """Shows the keys again in place of an answer."""
        if self._said:
            self._say("")

    # What the keys do. A question names the job or GPU that was selected when the key was pressed.

    def _job(self) -> Json | None:
        """Returns the selected job; None if there is none or the GPUs are in use."""
        if self.focused is self._jobs and (job := self._jobs.selected) is not None:
            return job
        self._say("select a job first; Tab changes between GPUs and jobs")
        return None

    def _ask(self, call: Callable[[], str], then: Callable[[str], object] | None = None) -> None:
        """Calls the client in a thread, then shows what it returns or the error."""

        def run() -> None:
            try:
                text = call()
            except SchedulerError as error:
                text = str(error)
            self._in_app(then or self._say, text)
            self._watcher.look()

        threading.Thread(target=run, daemon=True).start()

    def _change(self, operation: str, **given: Any) -> None:
        def call() -> str:
            answers = self._client.call(operation, **given)["answers"]
            kind = "GPU" if operation == "change_gpus" else "job"
            return "; ".join(f"{kind} {one[kind.lower()]}: {one['text'] or one['result']}" for one in answers)

        self._say(f"{given['verb']} …")
        self._ask(call)

    def action_change(self, verb: str, is_asked: bool) -> None:
        """Cancels, retries, holds or releases the selected job. is_asked: whether to ask first."""
        if (job := self._job()) is None:
            return

        def then(answer: str | None) -> None:
            if answer:
                self._change("change_jobs", verb=verb, jobs=[job["id"]])
                self._watcher.look(job["id"])

        if is_asked:
            self.push_screen(Prompt(f"{verb.capitalize()} {_named(job)}?"), then)
        else:
            then("y")

    def action_priority(self) -> None:
        """Asks for the new priority of the selected job."""
        if (job := self._job()) is None:
            return

        def then(answer: str | None) -> None:
            if answer:
                self._change("change_jobs", verb="priority", jobs=[job["id"]], priority=int(answer))

        question = f"New priority of {_named(job)}, now {job['priority']} (lower numbers start first):"
        self.push_screen(Prompt(question, is_choice=False), then)

    def action_pause(self) -> None:
        """Pauses or resumes the selected GPU."""
        gpu = self._gpus.selected
        if self.focused is not self._gpus or gpu is None:
            return
        verb = "resume" if gpu["state"] in ("paused", "suspect") else "pause"

        def then(answer: str | None) -> None:
            if answer:
                self._change("change_gpus", verb=verb, gpus=[gpu["index"]])

        if verb == "resume":
            then("y")
        else:
            jobs = f", on which {count_noun(len(gpu['jobs']), 'job')} continue" if gpu["jobs"] else ""
            name = safe_text(gpu["name"] or "")
            self.push_screen(Prompt(f"Pause GPU {gpu['index']} ({name}){jobs}?"), then)

    def action_details(self) -> None:
        """Shows everything about the selected job or GPU."""
        if self.focused is self._gpus:
            gpu = self._gpus.selected
            if gpu is not None:
                texts = (f"{key:<22}{value}" for key, value in gpu.items() if value not in (None, [], False))
                why = gpu_reason(gpu, self._now())
                lines = [
                    f"GPU {gpu['index']} {gpu['name']}",
                    "",
                    *texts,
                    *([f"{'reason':<22}{why}"] if why else []),
                ]
                self.push_screen(Lines([Cell(_one_line(one)) for one in lines]))
            return
        if (job := self._job()) is None:
            return
        screen = Lines([Cell(f"Reading {_named(job)} …")])
        self.push_screen(screen)

        def call() -> str:
            detail = self._client.call("job", job_id=job["id"])
            try:
                why: Json | str = self._client.call("why_job", job_id=job["id"])
            except ClientError as error:  # the token may not read it
                why = str(error)
            self._in_app(screen.show, detail_lines(detail, why, detail["now"]))
            return ""

        def then(error: str) -> None:
            if error:
                screen.show([Cell(safe_text(error), RED)])

        self._ask(call, then)

    def action_log(self) -> None:
        """Follows the log of the selected job."""
        if (job := self._job()) is not None:
            self.push_screen(LogScreen(Job(job["id"], self._client)))

    def action_attach(self) -> None:
        """Opens the Screen session of the selected job on this terminal, and comes back at its end."""
        if (job := self._job()) is None:
            return
        if self._open_session is None:
            self._say("`attach` works on the machine of the queue; l shows the log")
            return
        try:
            with self.suspend():
                self._open_session(job["id"])
        except SchedulerError as error:
            self._say(str(error))

    def action_filter(self) -> None:
        """Opens the field of the filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters the jobs while the user types."""
        if event.input.id == "filter":
            self._wanted = event.value.strip()
            self._show_jobs()
            self._tick()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes the field and keeps the filter."""
        if event.input.id == "filter":
            event.input.display = False
            self._jobs.focus()

    def action_all(self) -> None:
        """Ends the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self._jobs.focus()

    def action_keys(self) -> None:
        """Lists the keys."""
        self.push_screen(Lines([Cell("Keys", BOLD), *(Cell(f"{key:<8}{what}") for key, what, _ in KEYS)]))


def _named(job: Json) -> str:
    return f"job {job['id']} ({truncate_middle(_one_line(title(job)), 60)})"


def run(client: Client, attach: Callable[[int], object] | None) -> int:
    """Runs the app until q. Returns the exit code; dies of a signal that ended the app.

    Raises ClientError if the queue does not answer.
    """
    client.health()  # an error here is printed before the screen changes
    app = Top(client, attach)
    app.run(mouse=False)  # the terminal's own mouse selects text
    if app.ended_by is not None:
        signal.signal(app.ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), app.ended_by)
    return app.return_code or 0
