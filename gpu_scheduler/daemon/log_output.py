"""Prints the output of `start` in a separate thread, and writes the main log.

A blocked terminal, a full disk or a removed log file never delays a job. If the terminal does not accept a
line in time, the line is not printed, but it is still in the log file.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind, JobEnded
from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.core.text.formatting import count_noun, safe_text
from gpu_scheduler.core.text.job_output import FrameFilter, sanitized
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.show import tables
from gpu_scheduler.show.events import EventMessage, message_of
from gpu_scheduler.show.layout import (
    CYAN,
    FAINT,
    RED,
    YELLOW,
    are_enabled,
    coloured,
    display_width,
    of_outcome,
    truncate_end,
    truncate_middle,
    wrap_words,
)
from gpu_scheduler.system.own_process import start_thread
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, check_status, trusted_owners
from gpu_scheduler.system.shortages import describe_shortage, reraise_shortage

# Formats the lines that `start` prints on a terminal: time, mark, job with its title, and message.
#
# The main log contains the same messages, with date and level and without truncation.


#: ASCII replacements for the symbols in messages, for terminals whose encoding lacks some of the symbols.
_ASCII = str.maketrans(
    {
        tables.RUNNING: ">", tables.WAITING: ".", tables.RETRY: "~", tables.SUCCESS: "+", tables.FAILURE: "x",
        "…": "...", "—": "-", "→": "->", "±": "+-",
    }
)  # fmt: skip
#: Maximum number of rows for a message about a job.
_MAX_ROWS = 3
#: Indent of each further row of a message.
_INDENT = 12
#: A job's title is not shortened below this width to make a message fit into one row.
_MIN_TITLE = 12
#: Maximum width of a job's title if the message needs more than one row.
_SHORT_TITLE = 24


class Terminal(Struct, frozen=True):
    """The terminal on which the lines are printed."""

    columns: int = 80
    colours: bool = False
    encoding: str = "utf-8"

    @property
    def text_width(self) -> int:
        """The number of columns that remain beside the time and the mark."""
        return max(20, self.columns - _INDENT)

    def can_encode(self, text: str) -> bool:
        """Returns whether the terminal's encoding contains all characters of a text."""
        try:
            text.encode(self.encoding)
        except (UnicodeError, LookupError):
            return False
        return True


def format_event(event: Event, message: EventMessage, at: float, terminal: Terminal) -> str:
    """Formats the lines of an event. at: seconds since 1970."""
    mark, colour = _mark(event, message.level)
    text = safe_text(message.text)
    subject = _subject(event, message, terminal.text_width - display_width(text)) if message.subject else ""
    first, *more = wrap_words(subject + text, terminal.text_width)
    if len(more) >= _MAX_ROWS:
        more[_MAX_ROWS - 2 :] = [truncate_end(" ".join(more[_MAX_ROWS - 2 :]), terminal.text_width)]
    end = len(subject) or len(first)
    return _render(at, mark, colour, [first[:end], first[end:]], more, terminal)


def format_message(level: int, text: str, at: float, terminal: Terminal) -> str:
    """Formats the lines of a message that is not about an event.

    Such a message may contain paths, so it is never truncated.
    """
    mark, colour = tables.NONE, ""
    if level >= logging.WARNING:
        mark, colour = tables.WARNING, RED if level >= logging.ERROR else YELLOW
    lines = safe_text(text, keep_line_breaks=True).split("\n")
    first, *more = [row for line in lines for row in wrap_words(line, terminal.text_width)]
    return _render(at, mark, colour, [first, ""], more, terminal)


def _subject(event: Event, message: EventMessage, room: int) -> str:
    """Returns the job and its title, truncated to fit `room` columns unless too little would remain."""
    room -= len(f"{message.subject} : ")
    title = tables.title_of(event.name, event.command, event.spec)
    title = truncate_middle(title, room if room >= _MIN_TITLE else _SHORT_TITLE)
    return f"{message.subject} {title}: " if title else f"{message.subject}: "


def _render(
    at: float, mark: str, colour: str, first: Sequence[str], more: Sequence[str], terminal: Terminal
) -> str:
    """Renders the rows. first: the coloured part and the rest of the first row; more: the rows below it."""
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    if terminal.colours:
        clock, head = coloured(clock, FAINT), coloured(f"{mark} {first[0]}", colour)
    else:
        head = f"{mark} {first[0]}"
    text = "\n".join([f"{clock}  {head}{first[1]}", *(" " * _INDENT + row for row in more)])
    return text if terminal.can_encode(text) else text.translate(_ASCII)


def _mark(event: Event, level: int) -> tuple[str, str]:
    """Returns the mark of an event, and its colour."""
    outcome = event.details.outcome if isinstance(event.details, (AttemptEnded, JobEnded)) else None
    warning = YELLOW if level >= logging.WARNING else ""
    if event.kind == EventKind.STARTING:
        return tables.RUNNING, CYAN
    if outcome is not None and event.kind == EventKind.QUEUED:
        return tables.RETRY, YELLOW
    if outcome is not None:
        colour = of_outcome(outcome)
        mark = tables.outcome_mark(outcome)
        return mark, warning or colour if mark == tables.SUCCESS else colour
    if event.kind in (EventKind.QUEUED, EventKind.HELD, EventKind.INFEASIBLE):
        return tables.WAITING, warning
    return (tables.WARNING, warning) if warning else (tables.NONE, "")


# Reads the output of jobs, prints it together with those lines, and writes the main log.


#: Maximum number of bytes read from a log at a time.
_READ_BYTES = 1 << 20
#: Maximum number of bytes of a line that are printed.
_MAX_LINE_BYTES = 4096
#: Maximum number of bytes of a job's output that may wait to be printed. Beyond it, only the end is read.
_MAX_BACKLOG_BYTES = 8 << 20
#: Maximum number of header lines, which begin with "# " and are not part of the job's output.
_HEADER_LINES = 4
_RESET_COLOUR = "\x1b[0m"


class JobOutputReader:
    """Reads the new lines of a job log, safe to print on a terminal.

    Reads at most one update of a progress bar per second.
    include_runner_line: include the last line of the log, which the runner writes.
    """

    def __init__(self, job_id: int, number: int, path: Path, *, include_runner_line: bool) -> None:
        self.attempt = (job_id, number)
        self._prefix = f"[job {job_id}] "
        self._path = path
        self._at = 0
        self._frames = FrameFilter(update_interval_s=1.0)
        self._header_left = _HEADER_LINES
        self._is_mid_line = False  # the last printed line was truncated, and its rest follows in the log
        self._include_runner_line = include_runner_line
        self._pending: list[str] = []
        self.has_ended = False
        self.is_exhausted = False

    def read(self) -> list[str]:
        """Returns the new lines; sets `is_exhausted` at the end of an ended attempt's log.

        Raises OSError if a shortage prevents opening the log. No output is lost then.
        """
        ended = self.has_ended
        try:
            with open(self._path, "rb") as file:
                self._pending += self._catch_up(os.fstat(file.fileno()).st_size)
                file.seek(self._at)
                data = file.read(_READ_BYTES)
        except OSError as error:
            reraise_shortage(error)
            self.is_exhausted = True
            return self._pending
        self._at += len(data)
        self.is_exhausted = ended and len(data) < _READ_BYTES
        text = self._frames.feed(data, time.monotonic())
        lines = [*self._pending, *self._lines(text + self._frames.flush() if self.is_exhausted else text)]
        # The runner's last line has the same content as the scheduler's log line about the end of the job.
        end = lines[-1:] if lines and lines[-1].startswith(f"{self._prefix}--- ") else []
        self._pending = end if not self.is_exhausted else []
        return lines if self.is_exhausted and self._include_runner_line else lines[: len(lines) - len(end)]

    def _catch_up(self, size: int) -> list[str]:
        """Skips output if there is too much to print; returns a line that says so."""
        skipped = size - _READ_BYTES - self._at
        if skipped + _READ_BYTES <= _MAX_BACKLOG_BYTES:
            return []
        self._at += skipped
        self._frames, self._is_mid_line = FrameFilter(update_interval_s=1.0), True
        return [f"{self._prefix}… {skipped:,} bytes omitted; `logs {self.attempt[0]}` shows them"]

    def _lines(self, text: bytes) -> Iterator[str]:
        *lines, rest = text.split(b"\n")
        for line in lines:
            if not self._is_mid_line:
                yield from self._line(line)
            self._is_mid_line = False
        if rest and not self._is_mid_line:
            yield from self._line(rest, is_whole=self.is_exhausted)
            self._is_mid_line = True

    def _line(self, line: bytes, *, is_whole: bool = True) -> Iterator[str]:
        if self._header_left and line.startswith(b"# "):
            self._header_left -= 1
        else:
            self._header_left = 0
            # Colours are reset at the end of each line, so that they do not affect the next line.
            shown = sanitized(line[:_MAX_LINE_BYTES]).decode("utf-8", "replace")
            end = "" if is_whole and len(line) <= _MAX_LINE_BYTES else "…"
            is_coloured = "\x1b" in shown and not shown.endswith(_RESET_COLOUR)
            yield f"{self._prefix}{shown}{end}{_RESET_COLOUR if is_coloured else ''}"


#: Maximum number of lines that wait for the terminal.
_MAX_QUEUED_LINES = 10_000
#: Maximum number of consecutive reads of an ended attempt's log. Later reads print the rest.
_MAX_FINAL_READS = 16
#: Errors of a stdout file that cannot grow at present. The current line is lost; later lines may be written.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Console:
    """Prints log lines and the prefixed output of direct jobs; drops lines if the terminal blocks.

    Raises SchedulerError if no thread can be started.
    """

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self.on_terminal = sys.stdout.isatty()
        self._tails: dict[int, JobOutputReader] = {}
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._is_closing = threading.Event()
        self._has_tails = threading.Event()
        self._problem: str | None = None
        # Both threads start now, because later the process limit may not allow it.
        self._printer = _start_thread(self._print)
        self._follower = _start_thread(self._follow)

    def put(self, line: str) -> None:
        """Queues a line for printing; drops it if the queue is full."""
        with suppress(queue.Full):
            self.lines.put_nowait(line)

    def follow_attempt(self, attempt: Attempt) -> None:
        """Starts printing the log of a direct attempt. Each printed line begins with the job id."""
        if attempt.log is None or _is_stdout_discarded():
            return
        with self._lock:
            self._tails[attempt.id] = JobOutputReader(
                attempt.job_id, attempt.number, Path(attempt.log), include_runner_line=not self.on_terminal
            )
            self._has_tails.set()

    def finish_attempt(self, job_id: int, number: int) -> None:
        """Prints the rest of an ended attempt's log. The caller does this before it logs the end."""
        with self._lock:
            ended = {key: tail for key, tail in self._tails.items() if tail.attempt == (job_id, number)}
        for attempt_id, tail in ended.items():
            tail.has_ended = True
            for _ in range(_MAX_FINAL_READS):
                if self._read(attempt_id, tail):
                    break

    def flush(self) -> None:
        """Waits up to one second until all queued lines are printed."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, 1.0)

    def close(self) -> None:
        """Prints the remaining lines, for at most one second per thread."""
        self._is_closing.set()
        self._has_tails.set()
        self._follower.wait(1.0)
        with suppress(queue.Full):
            self.lines.put_nowait(None)
        self._printer.wait(1.0)

    def _print(self) -> None:
        while (line := self.lines.get()) is not None:
            try:
                sys.stdout.write(line + "\n")
                if self.lines.empty():
                    sys.stdout.flush()
            except OSError as error:
                if error.errno not in _FULL_DISK:
                    return
            except ValueError:
                return
            self.lines.task_done()

    def _follow(self) -> None:
        while not self._is_closing.is_set():
            self._has_tails.wait()
            while not self._is_closing.wait(0.1):
                self._read_tails()
                with self._lock:
                    if not self._tails:
                        self._has_tails.clear()  # there is no log to follow
                        break
        self._read_tails()

    def _read_tails(self) -> None:
        with self._lock:
            tails = dict(self._tails)
        for attempt_id, tail in tails.items():
            self._read(attempt_id, tail)

    def _read(self, attempt_id: int, tail: JobOutputReader) -> bool:
        """Prints the next part of a log. Returns whether all of it has been printed."""
        with self._read_lock:
            if tail.is_exhausted:
                return True  # the other thread has read the end, and has now put its lines
            try:
                lines = tail.read()
            except OSError as error:
                self._report_problem(f"cannot show job output: {error.strerror}; see the job logs")
                return False
            self._report_problem(None)
            for line in lines:
                self.put(line)
            is_exhausted = tail.is_exhausted
        if is_exhausted:
            with self._lock:
                self._tails.pop(attempt_id, None)
        return is_exhausted

    def _report_problem(self, problem: str | None) -> None:
        """Prints each problem with job output once, and a line when job output can be shown again."""
        if problem != self._problem:
            self._problem = problem
            self.put(problem or "job output is shown again")


def _start_thread(work: Callable[[], None]) -> threading.Event:
    """Starts a thread; returns the event that it sets when it ends."""
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            ended.set()

    if not start_thread(run):
        raise SchedulerError(f"cannot start a thread: {describe_shortage(errno.EAGAIN)}")
    return ended


def _is_stdout_discarded() -> bool:
    """Returns whether stdout is /dev/null, as it is for a scheduler in the background."""
    try:
        return os.fstat(sys.stdout.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return False


#: Size in bytes at which the main log is rotated.
LOG_BYTES = 10 * 1024 * 1024
#: Number of old main logs that are kept.
LOG_KEPT = 3


class MainLog(RotatingFileHandler):
    """Log handler that writes the main log, and resumes as soon as possible after a problem.

    Reports each problem once, and later that the log can be written again and how many lines are missing.

    report: called once when the log cannot be written, and once when it can be written again; trust: accept
    the file regardless of its owner and mode.
    """

    def __init__(self, path: Path, report: Callable[[str], None], *, trust: bool = False) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_KEPT, encoding="utf-8", delay=True)
        self._report = report
        self._trust = trust
        self._problem: str | None = None
        self._failed = False
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Appends a line to the file that is currently at the main log's path."""
        self._failed = False
        if self._was_replaced():
            self._close_stream()
        super().emit(record)
        if self._problem is not None and not self._failed:
            missing = f"{count_noun(self._lost, 'line')} {'is' if self._lost == 1 else 'are'} missing"
            self._problem, self._lost = None, 0
            self._report(f"the main log {self.baseFilename} can be written again; {missing}")

    def handleError(self, record: logging.LogRecord) -> None:
        """Reports each OSError once. `emit` calls this method in its except clause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        self._lost += 1
        self._close_stream()  # otherwise the data left in the buffer would make every later write fail
        problem = str(error.strerror or error)
        if problem != self._problem:
            self._problem = problem
            self._report(
                f"the main log {self.baseFilename} cannot be written: {problem}; the scheduler continues"
            )

    def _open(self) -> TextIOWrapper:
        return open(open_main_log(self.baseFilename, trust=self._trust), "a", encoding="utf-8")

    def _was_replaced(self) -> bool:
        if self.stream is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.baseFilename), os.fstat(self.stream.fileno()))
        except OSError:
            return True

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()


def open_main_log(path: str | Path, *, trust: bool) -> int:
    """Opens the main log for appending and returns its descriptor.

    Raises OSError if the file cannot be opened, or if it is refused for its kind or owner.
    """
    # Without O_NONBLOCK, opening a FIFO at this path would block the scheduler forever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileProblem(ProblemKind.LINK).as_error(Path(path)) from None
        raise
    try:
        problem = check_status(os.fstat(fd), None, None if trust else trusted_owners(path))
        if problem is not None:
            raise problem.as_error(Path(path))
    except OSError:
        os.close(fd)
        raise
    return fd


#: Format of a line in the main log, and of a line on stdout if that is not a terminal.
_LOG_FORMAT = "%(asctime)s %(levelname)-7s {}%(message)s"


class _ConsoleHandler(QueueHandler):
    """Log handler that queues formatted lines for the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.lines)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.put(self.format(record))


class _SafeFormatter(logging.Formatter):
    """Formatter that escapes control characters, so that user text cannot control a terminal or the log."""

    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record), keep_line_breaks=True)


class _TerminalFormatter(logging.Formatter):
    """Formatter that fits lines to the current width of the terminal on stdout."""

    def format(self, record: logging.LogRecord) -> str:
        terminal = _current_terminal()
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            one = getattr(record, "event_message", None)
            return format_event(event, one or message_of(event), record.created, terminal)
        return format_message(record.levelno, super().format(record), record.created, terminal)


def _current_terminal() -> Terminal:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return Terminal(columns or 80, are_enabled(os.environ), sys.stdout.encoding or "ascii")


def configure_logging(path: Path, console: Console, prefix: str = "", *, trust: bool = False) -> None:
    """Sends the package's log lines of level info and above to the console and to the main log.

    prefix: the beginning of each message in the file, for schedulers that share a main log; trust: accept the
    file regardless of its owner and mode.
    """
    root = logging.getLogger("gpu_scheduler")
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.setLevel(logging.INFO)
    root.propagate = False
    lines, main_log = _ConsoleHandler(console), MainLog(path, console.put, trust=trust)
    lines.setFormatter(
        _TerminalFormatter() if console.on_terminal else _SafeFormatter(_LOG_FORMAT.format(""))
    )
    main_log.setFormatter(_SafeFormatter(_LOG_FORMAT.format(prefix)))
    for handler in (lines, main_log):
        root.addHandler(handler)
