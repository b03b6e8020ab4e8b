"""Writes the main log. The scheduler continues if the disk is full or the file is removed or read-only.

Writing resumes as soon as possible. Each problem is reported once. A second report says when the log can be
written again and how many lines are missing.
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

from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, check_status, trusted_owners

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
