"""Prints the output of `start` from a thread of its own, so that a stopped terminal never delays a job.

Lines that the terminal does not accept in time are dropped there, never from the log file.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from logging.handlers import QueueHandler
from pathlib import Path

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.core.text.progress_frames import FrameFilter
from gpu_scheduler.core.text.sanitize import sanitized
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.reporting.main_log import MainLog
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.shortages import describe_shortage, reraise_shortage
from gpu_scheduler.views import colours
from gpu_scheduler.views.event_messages import message_of
from gpu_scheduler.views.terminal_lines import Terminal, format_event, format_message

#: Maximum number of lines that wait for the terminal.
_MAX_QUEUED_LINES = 10_000
#: Bytes of a log read at a time, and maximum number of bytes printed of one line.
_READ_BYTES, _MAX_LINE_BYTES = 1 << 20, 4096
#: Maximum backlog of unprinted output of a job, in bytes; beyond it only the last bytes are read.
_MAX_BACKLOG_BYTES = 8 << 20
#: Maximum number of reads of an ended attempt's log at once; the rest follows later.
_MAX_FINAL_READS = 16
#: Maximum number of header lines, each beginning with "# ", which are not output of the job.
_HEADER_LINES = 4
_RESET_COLOUR = "\x1b[0m"
#: Errors of a stdout file that cannot grow now; the line is lost, and later lines are tried.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Format of a line in the main log and in a pipe.
_LOG_FORMAT = "%(asctime)s %(levelname)-7s {}%(message)s"


class Console:
    """Printer of log lines and of the prefixed output of direct jobs; drops lines if the terminal blocks.

    Raises SchedulerError if no thread can be started.
    """

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED_LINES)
        self.on_terminal = sys.stdout.isatty()
        self._tails: dict[int, _LogTail] = {}
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._is_closing = threading.Event()
        self._has_tails = threading.Event()
        self._problem: str | None = None
        # Starts both now: later the process limit may prevent it.
        self._printer = _start_thread(self._print, "console")
        self._follower = _start_thread(self._follow, "job output")

    def put(self, line: str) -> None:
        """Queues a line for printing; drops it if the queue is full."""
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            pass

    def follow_attempt(self, attempt_id: int, store: Store) -> None:
        """Starts printing the log of a direct attempt, each line prefixed with the job id."""
        attempt = store.attempt(attempt_id)
        if attempt is None or attempt.log is None or _is_stdout_discarded():
            return
        with self._lock:
            self._tails[attempt_id] = _LogTail(
                attempt.job_id, attempt.number, Path(attempt.log), include_runner_line=not self.on_terminal
            )
            self._has_tails.set()

    def finish_attempt(self, job_id: int, number: int) -> None:
        """Prints the rest of an ended attempt's log, before its end is logged."""
        with self._lock:
            ended = {key: tail for key, tail in self._tails.items() if tail.attempt == (job_id, number)}
        for attempt_id, tail in ended.items():
            tail.has_ended = True
            for _ in range(_MAX_FINAL_READS):
                if not tail.is_exhausted:
                    self._read(attempt_id, tail)

    def flush(self) -> None:
        """Waits up to one second until all queued lines are printed."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, 1.0)

    def close(self) -> None:
        """Prints the remaining lines, for at most one second per thread."""
        self._is_closing.set()
        self._has_tails.set()
        self._follower.join(1.0)
        try:
            self.lines.put_nowait(None)
        except queue.Full:
            pass
        self._printer.join(1.0)

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
                        self._has_tails.clear()  # no log left to follow
                        break
        self._read_tails()

    def _read_tails(self) -> None:
        with self._lock:
            tails = dict(self._tails)
        for attempt_id, tail in tails.items():
            self._read(attempt_id, tail)

    def _read(self, attempt_id: int, tail: _LogTail) -> None:
        with self._read_lock:
            try:
                lines = tail.read()
            except OSError as error:
                self._report_problem(f"cannot show job output: {error.strerror}; see the job logs")
                return
            self._report_problem(None)
            for line in lines:
                self.put(line)
        if tail.is_exhausted:
            with self._lock:
                self._tails.pop(attempt_id, None)

    def _report_problem(self, problem: str | None) -> None:
        """Prints a problem with showing job output once, and a line when it is resolved."""
        if problem != self._problem:
            self._problem = problem
            self.put(problem or "job output is shown again")


def _start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise SchedulerError(f"cannot start a thread: {describe_shortage(errno.EAGAIN)}") from None
    return thread


def _is_stdout_discarded() -> bool:
    """Returns whether stdout is /dev/null, as in the background."""
    try:
        return os.fstat(sys.stdout.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return False


class _LogTail:
    """Reader of new lines in a job log; of a progress bar it returns at most one line a second.

    include_runner_line: include the runner's last line of the log.
    """

    def __init__(self, job_id: int, number: int, path: Path, *, include_runner_line: bool) -> None:
        self.attempt = (job_id, number)
        self._prefix = f"[job {job_id}] "
        self._path = path
        self._at = 0
        self._frames = FrameFilter(update_interval_s=1.0)
        self._header_left = _HEADER_LINES
        self._is_mid_line = False  # the last line was truncated and continues
        self._include_runner_line = include_runner_line
        self._pending: list[str] = []
        self.has_ended = False
        self.is_exhausted = False

    def read(self) -> list[str]:
        """Returns the new lines; sets `is_exhausted` once the log of an ended attempt is read to its end.

        Raises OSError if a shortage prevents opening the log; nothing is lost then.
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
        # The runner's last line repeats the log line about the end of the job.
        end = lines[-1:] if lines and lines[-1].startswith(f"{self._prefix}--- ") else []
        self._pending = end if not self.is_exhausted else []
        return lines if self.is_exhausted and self._include_runner_line else lines[: len(lines) - len(end)]

    def _catch_up(self, size: int) -> list[str]:
        """Skips output that is too much to print in time; returns the line that reports this."""
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
            # Escape sequences end with their line, so that colours never leak into the next one.
            shown = sanitized(line[:_MAX_LINE_BYTES]).decode("utf-8", "replace")
            end = "" if is_whole and len(line) <= _MAX_LINE_BYTES else "…"
            is_coloured = "\x1b" in shown and not shown.endswith(_RESET_COLOUR)
            yield f"{self._prefix}{shown}{end}{_RESET_COLOUR if is_coloured else ''}"


class _ConsoleHandler(QueueHandler):
    """Log handler that queues formatted lines on the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.lines)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.put(self.format(record))


class _SafeFormatter(logging.Formatter):
    """Formatter that escapes control characters, since user text must not control a terminal or the log."""

    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record), keep_line_breaks=True)


class _TerminalFormatter(logging.Formatter):
    """Formatter for a terminal on stdout, at its present width."""

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
    return Terminal(columns or 80, colours.are_enabled(os.environ), sys.stdout.encoding or "ascii")


def configure_logging(path: Path, console: Console, prefix: str = "", *, trust: bool = False) -> None:
    """Sends the package's log lines of level info and above to the console and to the main log.

    prefix: begins each line in the file, for schedulers that share one; trust: accept the file whoever owns
    it or may write to it.
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
