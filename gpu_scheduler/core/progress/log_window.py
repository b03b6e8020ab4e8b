"""Keeps what the last 200 lines of a growing log say about progress.

A line that is drawn again after a carriage return is one line, as on a terminal. Of its frames, the last one
counts, the last frame of a bar, and the last frame of a full bar, which shows that a bar starts again. A bar
that another bar encloses moves the cursor up after each frame; such lines replace each other.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from gpu_scheduler.core.progress.log_patterns import parse_line
from gpu_scheduler.core.progress.marks import Mark
from gpu_scheduler.core.text.escapes import ESCAPE

#: Number of lines of a log that count.
MAX_LINES = 200
#: Maximum number of bytes of a frame that are examined.
_MAX_FRAME_BYTES = 2000
#: Maximum number of bytes of an unfinished line that are kept as they are.
_MAX_REST_BYTES = 4096
#: What ends the frame of a bar that another bar encloses: the cursor moves up.
_ENDS_UP = re.compile(rb"\x1b\[\d*[AF]\s*\Z")
#: Lines of the runner: its header and its last line.
_OF_RUNNER = (b"# ", b"--- ")


class LogWindow:
    """The marks of the last lines of a log, which is fed in pieces."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._lines = 0
        self._rest = b""
        self._was_nested = False

    def feed(self, data: bytes, is_late: Callable[[], bool] = lambda: False) -> bool:
        """Adds bytes at the end of the log; returns False, with a part of them added, if it gets late."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in reversed(list(islice(_last_lines(lines), MAX_LINES))):
            if is_late():
                return False
            self._add_line(line)
        self._rest = rest if len(rest) <= _MAX_REST_BYTES else _shortened(rest)
        while self._marks and self._marks[0].line <= self._lines - MAX_LINES:
            self._marks.popleft()
        return True

    def marks(self) -> list[Mark]:
        """Returns the marks, oldest first, including those of the line that has not ended yet."""
        return [*self._marks, *_marks_of(self._rest, self._lines + 1)]

    def _add_line(self, line: bytes) -> None:
        marks = list(_marks_of(line, self._lines + 1))
        is_nested = _is_nested(line)
        if is_nested and self._was_nested and marks:
            while self._marks and self._marks[-1].line == self._lines:
                self._marks.pop()
            marks = [mark._replace(line=self._lines) for mark in marks]
        else:
            self._lines += 1
        self._was_nested = is_nested
        self._marks.extend(marks)


def _shortened(rest: bytes) -> bytes:
    """Returns an unfinished line with only the frames that count. Its last frame may not be complete yet."""
    head, overwrites, last = rest.rpartition(b"\r")
    kept = [*_kept_frames(head)] if overwrites else []
    return b"\r".join([*kept, last[:_MAX_FRAME_BYTES]])


def _is_nested(line: bytes) -> bool:
    return _ENDS_UP.search(line[-64:]) is not None


def _last_lines(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the lines that show something, newest first, and only the newest of several frames of one bar.

    Thousands of frames of an enclosed bar must not push out the bar that encloses it.
    """
    was_nested = False
    for line in reversed(lines):
        is_nested = _is_nested(line)
        if line.strip(b"\r \t") and not (is_nested and was_nested):
            was_nested = is_nested
            yield line


def _marks_of(line: bytes, number: int) -> Iterator[Mark]:
    if line.startswith(_OF_RUNNER):
        return
    for frame in _kept_frames(line):
        text = frame.decode("utf-8", "replace")
        text = ESCAPE.sub("", text) if "\x1b" in text else text
        mark = parse_line(text, number, is_nested=bool(_ENDS_UP.search(frame)))
        if mark is not None:
            yield mark


def _kept_frames(line: bytes) -> Sequence[bytes]:
    """Returns the frames of a line that count, in their order."""
    if b"\x08" in line:  # some bars move back with backspaces instead of a carriage return
        line = re.sub(rb"\x08+", b"\r", line)
    if b"\r" not in line:
        return (line[:_MAX_FRAME_BYTES],)
    end = len(line)
    while True:
        begin = line.rfind(b"\r", 0, end) + 1
        if not begin or ESCAPE.sub("", line[begin:end].decode("latin-1")).strip():
            break
        end = begin - 1
    frames = {begin: line[begin:end]}
    for what in (b"%|", b"100%|"):
        at = line.rfind(what, 0, begin)
        if at >= 0:
            first = line.rfind(b"\r", 0, at) + 1
            frames[first] = line[first : line.find(b"\r", at)]
    return tuple(frames[at][:_MAX_FRAME_BYTES] for at in sorted(frames))
