"""Sends the package's log lines to the console and to the main log."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import QueueHandler
from pathlib import Path

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.reporting.console import Console
from gpu_scheduler.reporting.main_log import MainLog
from gpu_scheduler.views import colours
from gpu_scheduler.views.event_messages import message_of
from gpu_scheduler.views.terminal_lines import Terminal, format_event, format_message

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
    return Terminal(columns or 80, colours.are_enabled(os.environ), sys.stdout.encoding or "ascii")


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
