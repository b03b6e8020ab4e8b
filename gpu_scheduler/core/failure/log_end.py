"""Reads the end of a failed program's log: its lines, its tracebacks and the error that ended the program."""

from __future__ import annotations

from functools import cached_property

from gpu_scheduler.core.failure.log_lines import LogLine, log_lines
from gpu_scheduler.core.failure.log_patterns import NON_PYTHON_ERROR, PYTHON_ERROR
from gpu_scheduler.core.failure.tracebacks import Traceback, final_traceback, find_tracebacks

#: An error without a traceback counts only if it is among this many lines at the end.
_MAX_LINES_OF_LOOSE_ERROR = 20


class LogEnd:
    """The end of the log of a program that failed."""

    def __init__(self, tail: str) -> None:
        self.tail = tail

    @cached_property
    def lines(self) -> list[LogLine]:
        """The lines without their prefixes, each with the process that wrote it."""
        return list(log_lines(self.tail))

    @cached_property
    def tracebacks(self) -> dict[int, Traceback]:
        """The tracebacks, by the index of the line that names the error."""
        return {one.index: one for one in find_tracebacks(self.lines)}

    @cached_property
    def final_traceback(self) -> Traceback | None:
        """The traceback that ended the program; None if there is none."""
        return final_traceback(list(self.tracebacks.values()), self.lines)

    def error(self, max_lines_after: int | None = None) -> str | None:
        """Returns the line that names the error that ended the program; None if there is none.

        max_lines_after: if more lines than this follow a traceback, it did not end the program.
        """
        final = self.final_traceback
        if final is None or (max_lines_after is not None and len(self.lines) - final.index > max_lines_after):
            index = self.loose_error_index()
            return None if index is None else self.lines[index].text.strip()
        return final.text

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines without their prefixes."""
        return [line.text for line in self.lines[-count:]]

    def loose_error_index(self) -> int | None:
        """Returns the index of the last line near the end that looks like an error; None if there is none."""
        count = len(self.lines)
        for index in range(count - 1, max(-1, count - 1 - _MAX_LINES_OF_LOOSE_ERROR), -1):
            text = self.lines[index].text
            is_python = PYTHON_ERROR.fullmatch(text.strip()) and not text.endswith(":")
            if is_python or NON_PYTHON_ERROR.fullmatch(text):
                return index
        return None
