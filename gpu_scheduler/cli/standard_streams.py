"""Ensures that a command has its standard streams, and distinguishes output errors from other errors."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class OutputError(OSError):
    """An error while writing to the standard output, such as a full disk, but not a closed pipe."""


class _StdoutFile(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


def open_standard_streams() -> None:
    """Opens /dev/null for each stream that the caller closed (`start >&-`), so no file gets its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The opened file gets the lowest free number, which is fd.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
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
        io.BufferedWriter(_StdoutFile(1, "w", closefd=False)),
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


def flush_or_discard(limit_s: float = 1.0) -> bool:
    """Writes output that is not essential or, if that fails, discards it; False if nobody reads it.

    The buffer then stays locked, so that only `os._exit` ends this process; the interpreter waits for it.
    """

    from gpu_scheduler.system.deadline import within  # few commands need threads

    def flush() -> bool:
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        return True

    return within(limit_s, flush, otherwise=False)


def print_done(text: str) -> None:
    """Prints the result of what a command has done; on stderr if stdout cannot be written.

    The exit code then still says whether the command did it.
    """
    try:
        print(text, flush=True)
    except OutputError as error:
        from gpu_scheduler.cli.program import print_message

        discard_output()
        print_message(f"{text}\ncannot write to standard output: {error.strerror}")


def discard_output() -> None:
    """Discards the buffered output, so that the interpreter's flush at exit raises no error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
