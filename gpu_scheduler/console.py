"""What `start` prints, written by a thread of its own: a stopped terminal never holds up a job.

What the terminal does not take in time is dropped there, never in the log file.
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

#: Lines that may wait for the terminal.
_WAITING = 10_000
#: Bytes of a log that are read at a time, and of one of its lines that are printed.
_AT_A_TIME, _LONGEST = 1 << 20, 4096
#: Bytes that a job may be ahead of what is printed of it; of more only the last are read.
_BEHIND = 8 << 20
#: Reads of what the log of an ended attempt holds still; the rest comes later.
_AT_END = 16
#: Lines, each beginning with "# ", by which a log may begin and which are not output of the job.
_HEADER_LINES = 4
_NO_COLOUR = "\x1b[0m"
#: The file that stdout is cannot grow now; a line is lost, and later ones are tried.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A line of the main log, and of what a pipe gets.
_FULL = "%(asctime)s %(levelname)-7s {}%(message)s"


class Console:
    """Prints log lines, and the output of direct jobs with a prefix, as far as the terminal takes them.

    Raises SchedulerError where no thread can be started.
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
        # Both now: later there may be no room for another thread.
        self._printer = _started(self._print, "console")
        self._follower = _started(self._follow, "job output")

    def put(self, line: str) -> None:
        """Print a line if there is room for it."""
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            pass

    def follow(self, attempt_id: int, store: Store) -> None:
        """Print what a direct attempt writes to its log, with the job's number before each line."""
        row = store.db.row("SELECT job_id, number, log FROM attempt WHERE id = ?", attempt_id)
        if row is None or row["log"] is None or _is_thrown_away():
            return
        with self._lock:
            self._tails[attempt_id] = _Tail(
                row["job_id"], row["number"], Path(row["log"]), with_end=not self.on_terminal
            )
            self._wanted.set()

    def finish(self, job_id: int, number: int) -> None:
        """An attempt has ended: print what its log still holds before its end is told."""
        with self._lock:
            ended = {key: tail for key, tail in self._tails.items() if tail.attempt == (job_id, number)}
        for attempt_id, tail in ended.items():
            tail.ended = True
            for _ in range(_AT_END):
                if not tail.over:
                    self._read(attempt_id, tail)

    def flush(self) -> None:
        """Wait until all that was put is printed, for at most a second."""
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, 1.0)

    def close(self) -> None:
        """Print what is left, for at most a second."""
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
                        self._wanted.clear()  # nobody to wake up for
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
                self._tell(f"output of jobs is not shown: {error.strerror}; their logs have it")
                return
            self._tell(None)
            for line in lines:
                self.put(line)
        if tail.over:
            with self._lock:
                self._tails.pop(attempt_id, None)

    def _tell(self, problem: str | None) -> None:
        """Say once what keeps output from being shown, and when it is shown again."""
        if problem != self._problem:
            self._problem = problem
            self.put(problem or "output of jobs is shown again")


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise SchedulerError(f"no thread can be started: {described(errno.EAGAIN)}") from None
    return thread


def _is_thrown_away() -> bool:
    """Whether nothing is printed anywhere, as in the background."""
    try:
        return os.fstat(sys.stdout.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    except (OSError, ValueError):
        return False


class _Tail:
    """The lines that a log has gained since the last look; of a progress bar at most one a second.

    with_end: the runner's line at the end of the log is one of them.
    """

    def __init__(self, job_id: int, number: int, path: Path, *, with_end: bool) -> None:
        self.attempt = (job_id, number)
        self._prefix = f"[job {job_id}] "
        self._path = path
        self._at = 0
        self._frames = Frames(every_s=1.0)
        self._header_left = _HEADER_LINES
        self._is_begun = False  # the last line was cut, and goes on
        self._with_end = with_end
        self._kept: list[str] = []
        self.ended = False
        self.over = False

    def read(self) -> list[str]:
        """Lines not seen before; `over` is set once an ended attempt's log is read to its end.

        Raises OSError where the log cannot be opened for a shortage; nothing is lost by that.
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
        # The runner's own last line says what the line about the job's end says, too.
        end = lines[-1:] if lines and lines[-1].startswith(f"{self._prefix}--- ") else []
        self._kept = end if not self.over else []
        return lines if self.over and self._with_end else lines[: len(lines) - len(end)]

    def _catch_up(self, size: int) -> list[str]:
        """Leave out what is too much to be printed in time; the line that says so."""
        skipped = size - _AT_A_TIME - self._at
        if skipped + _AT_A_TIME <= _BEHIND:
            return []
        self._at += skipped
        self._frames, self._is_begun = Frames(every_s=1.0), True
        return [f"{self._prefix}… {skipped:,} bytes are left out here; `logs {self.attempt[0]}` has them"]

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
            # No sequence goes on behind a newline, so that each line stands alone; its colours end with it.
            shown = sanitized(line[:_LONGEST]).decode("utf-8", "replace")
            end = "" if is_whole and len(line) <= _LONGEST else "…"
            is_coloured = "\x1b" in shown and not shown.endswith(_NO_COLOUR)
            yield f"{self._prefix}{shown}{end}{_NO_COLOUR if is_coloured else ''}"


class _Lines(QueueHandler):
    """Hands formatted log lines to the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.lines)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.put(self.format(record))


class _Visible(logging.Formatter):
    """Log lines hold what users wrote, which must not act on the terminal that shows them, or their file."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), lines=True)


class _OnTerminal(logging.Formatter):
    """Lines for the terminal that stdout is, as wide as it is now."""

    def format(self, record: logging.LogRecord) -> str:
        terminal = _terminal()
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            one = getattr(record, "told", None)
            return of_event(event, one or told(event), record.created, terminal)
        return of_message(record.levelno, super().format(record), record.created, terminal)


def _terminal() -> Terminal:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return Terminal(columns or 80, colours.wanted(os.environ), sys.stdout.encoding or "ascii")


def begin_logging(path: Path, console: Console, mark: str = "", *, trust: bool = False) -> None:
    """Send the package's log lines of level info and above to the console and to the main log.

    mark: opens each line in the file, where schedulers share one; trust: whoever owns the file or may write
    it.
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
