"""`top`: the queue in the terminal, live, over a client of this machine or of another one.

The first part asks the client in threads. The second part is the app, which needs the package textual; it
never waits. Its texts are those of `show.top_text`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from msgspec import Struct
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
from textual.widget import Widget
from textual.widgets import Input, Log, Static

from gpu_scheduler.client import Client, Job, read_jobs
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState
from gpu_scheduler.core.text.job_output import plain_lines
from gpu_scheduler.errors import ClientError, SchedulerError
from gpu_scheduler.show import layout, top_text
from gpu_scheduler.show.layout import Cell, FixedColumns, fitted, truncate_end
from gpu_scheduler.web.operations import MAX_PAGE, Json

# The client, asked in threads. They end with the process, because a stream may be silent for 45 s.

#: Seconds between two looks while nothing happens, the least between two looks, and those after which an
#: answer is late.
_SLOW_S, _LEAST_S, _LATE_S = 3.0, 1.0, 4.0
#: Seconds after which all jobs are read again, because a change of the order of the queue is no event.
_ALL_S = 60.0
#: Seconds between two looks of the app at what the threads have found.
_TAKE_S = 0.1
#: Maximum number of finished jobs, newest first.
_MAX_FINISHED = 100


def _in_thread(call: Callable[[], object]) -> threading.Thread:
    made = threading.Thread(target=call, daemon=True)
    made.start()
    return made


#: The errors of a client, and those that only an answer of another version explains.
_ERRORS = (SchedulerError, LookupError, TypeError, ValueError, AttributeError)


def _client_error(error: Exception) -> ClientError:
    """Returns an error to show, with the remedy."""
    if isinstance(error, ClientError):
        return error
    return ClientError(f"unexpected answer ({error!r}); `top` and the server should have the same version")


class Picture(Struct, frozen=True):
    """The queue as the last look found it.

    jobs: in the order of the table. ahead_s: the time of the queue's machine, in seconds since 1970, minus
    the monotonic time here. problem: the error that ended the look; the rest is that of the look before.
    """

    jobs: Sequence[Json] = ()
    gpus: Sequence[Json] = ()
    health: Json | None = None
    ahead_s: float = 0.0
    problem: ClientError | None = None


class Watcher:
    """Keeps a picture of the queue: reads all jobs once, then those that events name and those on the screen.

    picture: only the newest, so that an app that does not take it needs no memory. visible: the ids on the
    screen, which the app sets; the reasons of waiting jobs change without events. asked_at: since when an
    answer is awaited, in monotonic time; None between two looks.
    """

    def __init__(self, client: Client) -> None:
        self.picture = Picture()
        self.visible: Sequence[int] = ()
        self.asked_at: float | None = None
        self._client = client
        #: Waiting jobs are in the order of the queue.
        self._jobs: dict[int, Json] = {}
        self._changed: set[int] = set()
        self._is_all_due, self._all_at = True, 0.0
        self._lock, self._wake = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Starts the threads."""
        _in_thread(self._listen)
        _in_thread(self._look_again)

    def look(self, *changed: int, is_all: bool = False) -> None:
        """Makes the next look due, at which it also reads these jobs, or all."""
        with self._lock:
            self._changed.update(changed)
        self._is_all_due |= is_all
        self._wake.set()

    def _call(self, operation: str, **given: Any) -> Json:
        found = self._client.call(operation, **given)
        self.asked_at = time.monotonic()
        return found

    def _listen(self) -> None:
        while True:
            with suppress(*_ERRORS):  # a look shows the error
                for event in self._client.events():
                    is_all = event["event"] in ("reset", "forgotten")
                    self.look(*([event["job"]] if event.get("job") else []), is_all=is_all)
            time.sleep(_SLOW_S)

    def _look_again(self) -> None:
        while True:
            self._wake.wait(_SLOW_S)
            self._wake.clear()
            began = self.asked_at = time.monotonic()
            try:
                self._look()
            except _ERRORS as error:  # shown with what the last look found
                self._is_all_due = True
                self.picture = replace(self.picture, problem=_client_error(error))
            self.asked_at = None
            time.sleep(max(0.0, began + _LEAST_S - time.monotonic()))

    def _look(self) -> None:
        if self._is_all_due or time.monotonic() - self._all_at >= _ALL_S:
            self._is_all_due, self._all_at = False, time.monotonic()
            every = ((ACTIVE, None), ((JobState.FINISHED,), _MAX_FINISHED), (WAITING, None))
            self._jobs = {one["id"]: one for states, most in every for one in self._pages(states, most)}
        with self._lock:
            changed, self._changed = self._changed, set()
        was_active = {one["id"] for one in self._jobs.values() if one["state"] in ACTIVE}
        active = {one["id"]: one for one in self._pages(ACTIVE)}
        again = (changed | was_active | set(self.visible)) - active.keys()
        found = {one["id"]: one for one in read_jobs(self._call, again)} | active
        gone = again - found.keys()
        self._jobs = {key: one for key, one in self._jobs.items() if key not in gone} | found
        health, read = self._call("health"), self._call("gpus")
        jobs = top_text.in_order(self._jobs.values(), _MAX_FINISHED)
        self._jobs = {one["id"]: one for one in jobs}  # without what is not shown any more
        self.picture = Picture(jobs, read["gpus"], health, read["now"] - time.monotonic())

    def _pages(self, states: Iterable[JobState], most: int | None = None) -> Iterator[Json]:
        page: Json = {}
        while not page or (page["next"] and most is None):
            order = "queue" if most is None else "finished"
            given = {"cursor": page.get("next"), "limit": most or MAX_PAGE, "order": order}
            page = self._call("jobs", state=sorted(states), **given)
            yield from page["jobs"]


class LogTail:
    """The end of a job's log, read in a thread that ends soon after `is_over` is set.

    new: the lines that nobody has taken yet. rest: the unfinished line. end: why nothing follows; "" while
    something may.
    """

    def __init__(self, job: Job) -> None:
        self.new: deque[str] = deque(maxlen=2000)
        self.rest, self.end, self.is_over = "", "", False
        self._job = job
        self.thread = _in_thread(self._follow)

    def _follow(self) -> None:
        rest = ""
        try:
            for text in self._job.follow(last_bytes=1 << 18):  # "" comes while nothing is new
                if self.is_over:
                    return
                *lines, rest = (rest + text).split("\n")
                rest = rest[-(1 << 16) :]
                self.new.extend(plain_lines(lines[-2000:]))
                [self.rest] = plain_lines([rest])
            self.end = "; the job has ended"
        except _ERRORS as error:
            self.end = f"; {top_text.error_text(_client_error(error))}"


# The app.

_STYLES = {
    layout.RED: "red", layout.GREEN: "green", layout.YELLOW: "yellow", layout.CYAN: "cyan",
    layout.FAINT: "dim", layout.BOLD: "bold", "": "",
}  # fmt: skip
#: Signals that end this process after the terminal is restored.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


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

    def __init__(self, key: str, columns: FixedColumns, cells: Callable[[Json], list[Cell]]) -> None:
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
        cells = self._cells(self.rows[at]) if y else [Cell(title, layout.BOLD) for title, *_ in self._columns]
        mark = Style(reverse=self.has_focus, bold=True) if y and at == self.at else Style()
        line = fitted(cells, self._columns, width)
        parts = [Segment(one.text, base + Style.parse(_STYLES[one.colour]) + mark) for one in line]
        return Strip(parts).adjust_cell_length(width, base + mark)


class Cover(ModalScreen[Any]):
    """Widgets from top to bottom that cover the tables until q or Esc."""

    BINDINGS: ClassVar = [("q,escape,question_mark,l", "app.pop_screen")]

    def __init__(self, *parts: Widget) -> None:
        super().__init__()
        self._parts = parts

    def compose(self) -> ComposeResult:
        """Yields the widgets."""
        yield from self._parts


class Prompt(Cover, inherit_bindings=False):
    """Asks a question below the tables. Its result is the answer, "" after Esc.

    typed: takes the answer at each key, too.
    """

    BINDINGS: ClassVar = [("escape", "dismiss('')")]

    def __init__(self, question: str, typed: Callable[[str], object] | None = None) -> None:
        super().__init__(Static(Text(question), id="question"), Input(compact=True))
        self._typed = typed

    def on_input_changed(self, event: Input.Changed) -> None:
        """Passes on the answer so far."""
        if self._typed is not None:
            self._typed(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends with the answer."""
        self.dismiss(event.value.strip())


class Lines(Cover):
    """Shows lines."""

    def __init__(self, *lines: Cell) -> None:
        self._static = Static(id="lines")
        self.show(*lines)
        super().__init__(VerticalScroll(self._static), _line("foot", "q goes back"))

    def show(self, *lines: Cell) -> None:
        """Replaces the lines."""
        self._static.update(Text("\n").join(Text(one.text, _STYLES[one.colour]) for one in lines))


class LogScreen(Cover):
    """Shows the end of a job's log, and follows it, with its unfinished line below."""

    def __init__(self, job: Job) -> None:
        self._title, self._tail = f"log of job {job.id}", LogTail(job)
        self._lines, self._rest, self._foot = Log(max_lines=20_000), _line("line"), _line("foot")
        super().__init__(self._lines, self._rest, self._foot)

    def on_mount(self) -> None:
        """Starts to take new lines."""
        self._lines.focus()
        self.set_interval(_TAKE_S, self._take)

    def on_unmount(self) -> None:
        """Ends the thread soon."""
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
    RowView, Log, VerticalScroll { scrollbar-size: 1 1; height: 1fr; }
    RowView, VerticalScroll { overflow-x: hidden; }
    .line, .foot { height: 1; max-height: 3; }
    .foot { text-style: reverse; }
    #banner { color: ansi_red; text-style: bold; height: auto; max-height: 5; }
    Prompt { align: left bottom; background: transparent; }
    #question { text-style: reverse bold; height: auto; max-height: 4; }
    """
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "quit", priority=True), Binding("ctrl+z", "suspend_process", priority=True),
        ("q", "quit"), ("l", "log"), ("a", "attach"), ("c", "change('cancel')"), ("r", "change('retry')"),
        ("h", "change('hold')"), ("u", "change('release')"), ("p", "change('priority')"),
        ("space", "change('pause')"), ("slash", "filter"), ("escape", "all"), ("question_mark", "keys"),
    ]  # fmt: skip

    def __init__(self, client: Client, attach: Callable[[int], object] | None) -> None:
        super().__init__(ansi_color=True)
        self.ended_by: int | None = None
        self._client, self._open_session, self._picture = client, attach, Picture()
        self._watcher = Watcher(client)
        self._gpus = RowView("index", top_text.GPU_COLUMNS, self._gpu_cells)
        self._jobs = RowView("id", top_text.JOB_COLUMNS, lambda job: top_text.job_cells(job, self._now()))
        self._head, self._banner, self._foot = _line("foot"), Static(id="banner"), _line("foot")
        self._by_id: dict[int, Json] = {}
        self._said, self._wanted = "", ""

    def compose(self) -> ComposeResult:
        """Yields the lines and the tables from top to bottom."""
        yield from (self._head, self._banner, self._gpus, self._jobs, self._foot)

    def on_mount(self) -> None:
        """Starts the threads and the clock, and restores the terminal at signals that end the process."""
        self._jobs.focus()
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
        self._watcher.start()
        self.set_interval(_TAKE_S, self._take)
        self.set_interval(1.0, self._draw)
        self._draw()

    def _end(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    # What is shown.

    def _now(self) -> float:
        return self._picture.ahead_s + time.monotonic()

    def _gpu_cells(self, gpu: Json) -> list[Cell]:
        jobs = [self._by_id[one] for one in gpu["jobs"] if one in self._by_id]
        return top_text.gpu_cells(gpu, jobs, self._now())

    def _take(self) -> None:
        """Shows the newest picture if it is new. The app misses those that came while it was suspended."""
        if (found := self._watcher.picture) is not self._picture:
            self._picture, self._by_id = found, {one["id"]: one for one in found.jobs}
            self._gpus.show(found.gpus)
            self._show_jobs()

    def _show_jobs(self) -> None:
        jobs, wanted = self._picture.jobs, self._wanted
        jobs = [one for one in jobs if top_text.matches(one, wanted)] if wanted else jobs
        old = self._jobs.rows[self._jobs.at] if self._jobs.rows else {}
        new = self._by_id.get(old.get("id", 0), old)  # a job that has ended is below all others
        has_ended = new.get("state") == JobState.FINISHED != old.get("state")
        self._jobs.show(jobs, keeps=not has_ended)
        self._draw()

    def _draw(self) -> None:
        """Draws what changes with the time and all lines."""
        found, asked_at, clock = self._picture, self._watcher.asked_at, time.strftime("%H:%M:%S")
        self._gpus.styles.height = min(max(2, self.size.height // 3), len(found.gpus) + 1)
        room = max(0, self.size.width - len(clock) - 1)
        text = truncate_end(top_text.head_text(found.health), room)
        self._head.update(Text(f"{text:<{room}} {clock}"))
        late_s = 0.0 if asked_at is None else time.monotonic() - asked_at
        text = top_text.banner_text(found.health, found.problem, late_s if late_s >= _LATE_S else 0.0)
        self._banner.update(Text(text))
        self._banner.display = bool(text)
        keys = top_text.foot_text(self._wanted, len(self._jobs.rows))
        self._foot.update(Text(self._said) if self._said else _one(keys))
        self._foot.styles.height = "auto" if self._said else 1
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
            except _ERRORS as error:
                known = error if isinstance(error, SchedulerError) else _client_error(error)
                lines = [Cell(top_text.error_text(known), layout.RED)]
            with suppress(RuntimeError):  # the app has ended
                self.call_later(show, *lines)
            self._watcher.look()

        _in_thread(run)

    def action_change(self, verb: str) -> None:
        """Changes the selected job, or pauses or resumes the selected GPU, after asking where it matters."""
        is_gpu = verb == "pause"
        if (row := self._gpus.selected if is_gpu else self._job()) is None:
            return
        verb = "resume" if is_gpu and row["state"] in ("paused", "suspect") else verb
        given: Json = {"gpus": [row["index"]]} if is_gpu else {"jobs": [row["id"]]}

        def call() -> list[Cell]:
            operation = "change_gpus" if is_gpu else "change_jobs"
            answers = self._client.call(operation, verb=verb, **given)["answers"]
            self._watcher.look(*given.get("jobs", ()), is_all=not is_gpu)
            return [Cell(text) for text in top_text.answer_texts(answers)]

        def then(answer: str | None) -> None:
            is_number = verb == "priority" and (answer or "").isdecimal()
            if is_number or (verb != "priority" and answer in ("y", "Y", "yes")):
                given.update({"priority": int(answer or 0)} if is_number else {})
                self._say(Cell(f"{verb} …"))
                self._ask(call, self._say)

        if question := top_text.question(verb, row):
            self.push_screen(Prompt(question), then)
        else:
            then("y")

    def action_details(self) -> None:
        """Shows everything about the selected job or GPU."""
        if (gpu := self._gpus.selected) is not None:
            self.push_screen(Lines(*top_text.gpu_lines(gpu, self._now())))
        elif (job := self._job()) is not None:
            one, screen = Job(job["id"], self._client), Lines(Cell(f"Reading {top_text.named(job)} …"))
            width = self.size.width - 1  # without the scroll bar

            def read() -> list[Cell]:
                found = self._client.call("job", job_id=one.id)
                try:
                    return top_text.detail_lines(found, one.why(), found["now"], width)
                except ClientError as error:  # the token may not read why
                    return top_text.detail_lines(found, str(error), found["now"])

            self.push_screen(screen)
            self._ask(read, screen.show)

    def action_log(self) -> None:
        """Follows the log of the selected job."""
        if (job := self._job()) is not None:
            self.push_screen(LogScreen(Job(job["id"], self._client)))

    def action_attach(self) -> None:
        """Opens the Screen session of the selected job on this terminal, and comes back at its end."""
        if self._open_session is None:
            self._say(Cell("attach works only on the machine of the queue; l shows the log"))
        elif (job := self._job()) is not None:
            said = ""
            with self.suspend():  # which does not come back from an error
                try:
                    self._open_session(job["id"])
                except (SchedulerError, OSError) as error:
                    said = top_text.error_text(error)
            self._say(Cell(said))

    def action_filter(self) -> None:
        """Asks for a text, and shows only the jobs with it while the user types."""
        self.push_screen(Prompt("Text of the jobs to show (Esc: all):", self._filter), self._filter)

    def action_all(self) -> None:
        """Ends the filter."""
        self._filter("")

    def _filter(self, text: str | None) -> None:
        self._wanted = text or ""
        self._show_jobs()

    def action_keys(self) -> None:
        """Lists the keys."""
        self.push_screen(Lines(*top_text.key_lines()))


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
