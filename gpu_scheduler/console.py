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

from gpu_scheduler.core.event import Event
from gpu_scheduler.core.frames import Frames
from gpu_scheduler.core.sanitize import sanitized
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.mainlog import MainLog
from gpu_scheduler.shortages import described, reraise
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import colours
from gpu_scheduler.views.events import told
from gpu_scheduler.views.terminal import Terminal, of_event, of_message
from gpu_scheduler.views.words import visible

#: Maximum number of lines that wait for the terminal.
_WAITING = 10_000
#: Bytes of a log read at a time, and maximum number of bytes printed of one line.
_AT_A_TIME, _LONGEST = 1 << 20, 4096
#: Maximum backlog of unprinted output of a job, in bytes; beyond it only the last bytes are read.
_BEHIND = 8 << 20
#: Maximum number of reads of an ended attempt's log at once; the rest follows later.
_AT_END = 16
#: Maximum number of header lines, each beginning with "# ", which are not output of the job.
_HEADER_LINES = 4
_NO_COLOUR = "\x1b[0m"
#: Errors of a stdout file that cannot grow now; the line is lost, and later lines are tried.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Format of a line in the main log and in a pipe.
_FULL = "%(asctime)s %(levelname)-7s {}%(message)s"


class Console:
    """Printer of log lines and of the prefixed output of direct jobs; drops lines if the terminal blocks.

    Raises SchedulerError if no thread can be started.
    """

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue(_WAITING)
        self.on_terminal = sys.stdout.isatty()
        self._tails: dict[int, _Tail] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._wanted = threading.Event()
        self._problem: str | None = None
        # Starts both now: later the process limit may prevent it.
        self._printer = _started(self._print, "console")
        self._follower = _started(self._follow, "job output")

    def put(self, line: str) -> None:
        """Queues a line for printing; drops it if the queue is full."""
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            pass

    def follow(self, attempt_id: int, store: Store) -> None:
        """Starts printing the log of a direct attempt, each line prefixed with the job id."""
        row = store.db.row("SELECT job_id, number, log FROM attempt WHERE id = ?", attempt_id)
        if row is None or row["log"] is None or _is_thrown_away():
            return
        with self._lock:
            self._tails[attempt_id] = _Tail(
                row["job_id"], row["number"], Path(row["log"]), with_end=not self.on_terminal
            )
            self._wanted.set()

    def finish(self, job_id: int, number: int) -> None:
        """Prints the rest of an ended attempt's log, before its end is logged."""
        with self._lock:
            ended = {key: tail for key, tail in self._tails.items() if tail.attempt == (job_id, number)}
        for attempt_id, tail in ended.items():
            tail.ended = True
            for _ in range(_AT_END):
                if not tail.over:
                    self._read(attempt_id, tail)

    def flush(self) -> None:
        """Waits up to one second until all queued lines are printed."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, 1.0)

    def close(self) -> None:
        """Prints the remaining lines, for at most one second per thread."""
        self._ended.set()
        self._wanted.set()
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
        while not self._ended.is_set():
            self._wanted.wait()
            while not self._ended.wait(0.1):
                self._read_tails()
                with self._lock:
                    if not self._tails:
                        self._wanted.clear()  # no log left to follow
                        break
        self._read_tails()

    def _read_tails(self) -> None:
        with self._lock:
            tails = dict(self._tails)
        for attempt_id, tail in tails.items():
            self._read(attempt_id, tail)

    def _read(self, attempt_id: int, tail: _Tail) -> None:
        with self._reading:
            try:
                lines = tail.read()
            except OSError as error:
                self._tell(f"cannot show job output: {error.strerror}; see the job logs")
                return
            self._tell(None)
            for line in lines:
                self.put(line)
        if tail.over:
            with self._lock:
                self._tails.pop(attempt_id, None)

    def _tell(self, problem: str | None) -> None:
        """Prints a problem with showing job output once, and a line when it is resolved."""
        if problem != self._problem:
            self._problem = problem
            self.put(problem or "job output is shown again")


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise SchedulerError(f"cannot start a thread: {described(errno.EAGAIN)}") from None
    return thread


def _is_thrown_away() -> bool:
    """Returns whether stdout is /dev/null, as in the background."""
    try:
        return os.fstat(sys.stdout.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return False


class _Tail:
    """Reader of new lines in a job log; of a progress bar it returns at most one line a second.

    include_runner_line: include the runner's last line of the log.
    """

    def __init__(self, job_id: int, number: int, path: Path, *, with_end: bool) -> None:
        self.attempt = (job_id, number)
        self._prefix = f"[job {job_id}] "
        self._path = path
        self._at = 0
        self._frames = Frames(every_s=1.0)
        self._header_left = _HEADER_LINES
        self._is_begun = False  # the last line was truncated and continues
        self._with_end = with_end
        self._kept: list[str] = []
        self.ended = False
        self.over = False

    def read(self) -> list[str]:
        """Returns the new lines; sets `is_exhausted` once the log of an ended attempt is read to its end.

        Raises OSError if a shortage prevents opening the log; nothing is lost then.
        """
        ended = self.ended
        try:
            with open(self._path, "rb") as file:
                self._kept += self._catch_up(os.fstat(file.fileno()).st_size)
                file.seek(self._at)
                data = file.read(_AT_A_TIME)
        except OSError as error:
            reraise(error)
            self.over = True
            return self._kept
        self._at += len(data)
        self.over = ended and len(data) < _AT_A_TIME
        text = self._frames.take(data, time.monotonic())
        lines = [*self._kept, *self._lines(text + self._frames.rest() if self.over else text)]
        # The runner's last line repeats the log line about the end of the job.
        end = lines[-1:] if lines and lines[-1].startswith(f"{self._prefix}--- ") else []
        self._kept = end if not self.over else []
        return lines if self.over and self._with_end else lines[: len(lines) - len(end)]

    def _catch_up(self, size: int) -> list[str]:
        """Skips output that is too much to print in time; returns the line that reports this."""
        skipped = size - _AT_A_TIME - self._at
        if skipped + _AT_A_TIME <= _BEHIND:
            return []
        self._at += skipped
        self._frames, self._is_begun = Frames(every_s=1.0), True
        return [f"{self._prefix}… {skipped:,} bytes omitted; `logs {self.attempt[0]}` shows them"]

    def _lines(self, text: bytes) -> Iterator[str]:
        *lines, rest = text.split(b"\n")
        for line in lines:
            if not self._is_begun:
                yield from self._line(line)
            self._is_begun = False
        if rest and not self._is_begun:
            yield from self._line(rest, is_whole=self.over)
            self._is_begun = True

    def _line(self, line: bytes, *, is_whole: bool = True) -> Iterator[str]:
        if self._header_left and line.startswith(b"# "):
            self._header_left -= 1
        else:
            self._header_left = 0
            # Escape sequences end with their line, so that colours never leak into the next one.
            shown = sanitized(line[:_LONGEST]).decode("utf-8", "replace")
            end = "" if is_whole and len(line) <= _LONGEST else "…"
            is_coloured = "\x1b" in shown and not shown.endswith(_NO_COLOUR)
            yield f"{self._prefix}{shown}{end}{_NO_COLOUR if is_coloured else ''}"


class _Lines(QueueHandler):
    """Log handler that queues formatted lines on the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.lines)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.put(self.format(record))


class _Visible(logging.Formatter):
    """Formatter that escapes control characters, since user text must not control a terminal or the log."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), lines=True)


class _OnTerminal(logging.Formatter):
    """Formatter for a terminal on stdout, at its present width."""

    def format(self, record: logging.LogRecord) -> str:
        terminal = _terminal()
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            one = getattr(record, "event_message", None)
            return of_event(event, one or told(event), record.created, terminal)
        return of_message(record.levelno, super().format(record), record.created, terminal)


def _terminal() -> Terminal:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return Terminal(columns or 80, colours.wanted(os.environ), sys.stdout.encoding or "ascii")


def begin_logging(path: Path, console: Console, mark: str = "", *, trust: bool = False) -> None:
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
    lines, main_log = _Lines(console), MainLog(path, console.put, trust=trust)
    lines.setFormatter(_OnTerminal() if console.on_terminal else _Visible(_FULL.format("")))
    main_log.setFormatter(_Visible(_FULL.format(mark)))
    for handler in (lines, main_log):
        root.addHandler(handler)
