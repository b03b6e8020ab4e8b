"""Sends the package's log lines to the console and to the main log."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.text.formatting import count_noun, safe_text
from gpu_scheduler.daemon.console import Console
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, check_status, trusted_owners
from gpu_scheduler.views import layout
from gpu_scheduler.views.event_messages import message_of
from gpu_scheduler.views.terminal_lines import Terminal, format_event, format_message

# Writes the main log. The scheduler continues if the disk is full or the file is removed or read-only.
#
# Writing resumes as soon as possible. Each problem is reported once. A second report says when the log can be
# written again and how many lines are missing.


#: Size in bytes at which the main log is rotated.
LOG_BYTES = 10 * 1024 * 1024
#: Number of old main logs that are kept.
LOG_KEPT = 3


class MainLog(RotatingFileHandler):
    """Log handler that writes the main log.

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
            try:
                stream.close()
            except OSError:
                pass


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
    return Terminal(columns or 80, layout.are_enabled(os.environ), sys.stdout.encoding or "ascii")


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
