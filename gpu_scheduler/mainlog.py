"""The main log as a file that may be full, removed, moved or forbidden: nothing of that ends the scheduler.

It is written again as soon as that is possible. What keeps it from being written is said once, and then how
many lines it lacks.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from gpu_scheduler.safefile import FileProblem, Kind, judge, owners

#: Size at which the main log is put aside, in bytes, and how many old ones are kept.
LOG_BYTES, LOG_KEPT = 10 * 1024 * 1024, 3


class MainLog(RotatingFileHandler):
    """say: told once when the log cannot be written, and when it can again. trust: write to it whoever owns
    it or may write it."""

    def __init__(self, path: Path, say: Callable[[str], None], *, trust: bool = False) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_KEPT, encoding="utf-8", delay=True)
        self._say = say
        self._trust = trust
        self._problem: str | None = None
        self._failed = False
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line to the file that lies at the path now."""
        self._failed = False
        if self._is_moved():
            self._let_go()
        super().emit(record)
        if self._problem is not None and not self._failed:
            lost = f"{self._lost} line{'' if self._lost == 1 else 's'}"
            self._problem, self._lost = None, 0
            self._say(f"the main log {self.baseFilename} can be written again; it lacks {lost}")

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by `emit` inside its except clause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        self._lost += 1
        self._let_go()  # what it still holds would be in the way of every later line
        problem = str(error.strerror or error)
        if problem != self._problem:
            self._problem = problem
            self._say(
                f"the main log {self.baseFilename} cannot be written: {problem}; everything else goes on"
            )

    def _open(self) -> TextIOWrapper:
        return open(opened(self.baseFilename, trust=self._trust), "a", encoding="utf-8")

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


def opened(path: str | Path, *, trust: bool) -> int:
    """A descriptor that appends to the main log, for whoever writes to it. Raises OSError, also for a file
    that is refused."""
    # Without O_NONBLOCK a FIFO at this path would hold the scheduler up for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileProblem(Kind.LINK).error(Path(path)) from None
        raise
    try:
        problem = judge(os.fstat(fd), None, None if trust else owners(path))
        if problem is not None:
            raise problem.error(Path(path))
    except OSError:
        os.close(fd)
        raise
    return fd
