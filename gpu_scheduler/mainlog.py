"""The main log as a file that may be full, removed, moved or forbidden: nothing of that ends the scheduler.

It is written again as soon as that is possible, and what keeps it from being written is said once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

#: Size at which the main log is put aside, in bytes, and how many old ones are kept.
LOG_BYTES, LOG_KEPT = 10 * 1024 * 1024, 3


class MainLog(RotatingFileHandler):
    """say: told once when the log cannot be written, and when it can again."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_KEPT, encoding="utf-8", delay=True)
        self._say = say
        self._problem: str | None = None
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line to the file that lies at the path now."""
        self._failed = False
        if self._is_moved():
            self._let_go()
        super().emit(record)
        if self._problem is not None and not self._failed:
            self._problem = None
            self._say(f"the main log {self.baseFilename} can be written again")

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by `emit` inside its except clause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        self._let_go()  # what it still holds would be in the way of every later line
        problem = str(error.strerror or error)
        if problem != self._problem:
            self._problem = problem
            self._say(
                f"the main log {self.baseFilename} cannot be written: {problem}; everything else goes on"
            )

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=opener)

    def _is_moved(self) -> bool:
        if self.stream is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.baseFilename), os.fstat(self.stream.fileno()))
        except OSError:
            return True

    def _let_go(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError:
                pass


def opener(path: str, flags: int) -> int:
    """A descriptor of the main log, for whoever writes to it. Raises OSError."""
    # Without O_NONBLOCK a FIFO at this path would hold the scheduler up for ever.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
