"""The standard streams of a command: there in any case, and an error of the output known as that."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class OutputError(OSError):
    """The standard output cannot be written, as on a full disk; a reader that has gone is no such error."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


def prepare() -> None:
    """Open what the caller has closed (`start >&-`) on /dev/null, before a file takes its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True
        )
    was = sys.stdout
    if was is not None and not _is_stdout(was):
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        encoding=was.encoding if was else "utf-8",
        errors="backslashreplace",
        line_buffering=os.isatty(1) or (isinstance(was, io.TextIOWrapper) and was.write_through),
        write_through=isinstance(was, io.TextIOWrapper) and was.write_through,
    )


def _is_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):
        return False


def flush_or_drop() -> None:
    """Write what is left, if it can be written; for a command whose work does not end by its output."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def drop_output() -> None:
    """Let what is still to be written vanish: the interpreter's own flush at exit must not complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
