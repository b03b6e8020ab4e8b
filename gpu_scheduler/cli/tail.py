"""Printing a log as it is, byte by byte: the last lines, then what is added."""

from __future__ import annotations

import os
import sys
from io import FileIO

from gpu_scheduler.errors import SchedulerError

_CHUNK = 1 << 16


class Tail:
    """A log that is being printed. Raises SchedulerError where it cannot be read."""

    def __init__(self, path: str) -> None:
        self._file = _opened(path)

    def go_on_with(self, path: str) -> None:
        """Print another log from its beginning, from now on."""
        self._file.close()
        self._file = _opened(path)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def print_last(self, lines: int | None) -> None:
        """Print the last `lines` lines, all of them for None."""
        self._file.seek(0 if lines is None else self._start_of(lines))
        self.print_new()

    def print_new(self) -> None:
        """Print what has been added since the last call."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)  # somebody emptied it
        while data := self._file.read(_CHUNK):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def _start_of(self, lines: int) -> int:
        """Where the last lines begin; a last line without newline counts."""
        end = at = self._file.seek(0, os.SEEK_END)
        if lines == 0:
            return end
        while at > 0:
            start = max(0, at - _CHUNK)
            self._file.seek(start)
            data = self._file.read(at - start)
            found = len(data)
            while (found := data.rfind(b"\n", 0, found)) >= 0:
                # The newline that ends the file ends its last line and begins none.
                lines -= start + found + 1 < end
                if lines == 0:
                    return start + found + 1
            at = start
        return 0


def _opened(path: str) -> FileIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise SchedulerError(f"the log {path} cannot be read: {error.strerror}") from None
