"""Drops the overwritten frames of progress bars from a job's output, line by line.

After a carriage return, the line is drawn again from its beginning, so the text after its last carriage
return is the line's last frame. A line that moves the cursor up, as nested progress bars do, overwrites the
lines above it and counts as a frame as well.
"""

from __future__ import annotations

import re

#: Maximum size in bytes of a frame that is held back; a longer frame is passed on at once.
MAX_FRAME_BYTES = 1 << 20
#: Escape sequence that moves the cursor up; nested progress bars use it.
CURSOR_UP = re.compile(rb"\x1b\[\d*[AF]")
#: Escape sequence that sets colours without drawing anything.
_COLOURS = re.compile(rb"\x1b\[[\d:;]*m")
#: Maximum length in bytes of the escape sequences that are looked for at the end of a frame.
_MAX_SEQUENCE_BYTES = 32


class FrameFilter:
    """A filter that passes output on line by line, with only the last frame of each line.

    update_interval_s: minimum number of seconds between two updates. An update passes on the newest frame of
    an unfinished line as a separate line. None means that there are no updates.
    """

    def __init__(self, update_interval_s: float | None = None) -> None:
        self._update_interval_s = update_interval_s
        self._updated_at = float("-inf")
        self._unfinished = b""  # text after the last carriage return or newline
        self._frame = b""  # the last complete frame of this line
        self._above = b""  # the last frame of the lines above, which this line may overwrite
        self._last_emitted = b""  # the last frame of this bar that was passed on
        self._is_bar = self._moves_up = False
        self._is_partly_emitted = False  # whether the beginning of this line has been passed on

    def feed(self, data: bytes, now: float) -> bytes:
        """Returns the lines that `data` completes, and an update if one is due. now: seconds from any origin.

        Empty data means that the job has printed nothing for a moment. The text after the last carriage
        return then counts as a complete frame.
        """
        out: list[bytes] = []
        is_within = self._is_bar or self._unfinished or self._above or self._is_partly_emitted
        if not is_within and b"\r" not in data and b"\x1b" not in data:
            whole = data.rfind(b"\n") + 1  # a shortcut: nearly all lines are plain text
            out.append(data[:whole])
            data, is_quiet = data[whole:], False
        else:
            is_quiet = not data
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._draw(line, out)
            self._end_line(out, now)
        self._draw(rest, out)
        self._update(out, now, is_quiet)
        return b"".join(out)

    def flush(self) -> bytes:
        """Returns the last frame of the line that is unfinished when the output ends, without a newline."""
        out: list[bytes] = []
        if self._unfinished or self._frame or self._is_partly_emitted:
            self._end_line(out, 0.0)
        self._emit_above(out)
        return b"".join(out).removesuffix(b"\n")

    def _draw(self, text: bytes, out: list[bytes]) -> None:
        self._moves_up = self._moves_up or (b"\x1b" in text and CURSOR_UP.search(text) is not None)
        *frames, last = text.split(b"\r")
        for frame in frames:
            self._extend(frame, out)
            if self._is_partly_emitted:
                out.append(b"\n")
                self._is_partly_emitted = False
            self._frame, self._unfinished = _overwritten(self._frame, self._unfinished), b""
            self._is_bar = True
        self._extend(last, out)

    def _extend(self, text: bytes, out: list[bytes]) -> None:
        self._unfinished += text
        if self._is_partly_emitted or len(self._unfinished) > MAX_FRAME_BYTES:
            out.append(self._unfinished)
            self._unfinished = b""
            self._is_partly_emitted = True

    def _end_line(self, out: list[bytes], now: float) -> None:
        last = _overwritten(self._frame, self._unfinished)
        if self._is_partly_emitted:
            out.append(b"\n")
        elif self._moves_up:
            self._above = _visible(last) or self._above
        else:
            self._emit_above(out)
            if not (self._is_bar and last and last == self._last_emitted):
                out.append(last + b"\n")
            self._last_emitted = b""
            self._updated_at = now if self._is_bar else self._updated_at
        self._unfinished = self._frame = b""
        self._is_bar = self._moves_up = self._is_partly_emitted = False

    def _emit_above(self, out: list[bytes]) -> None:
        if self._above and self._above != self._last_emitted:
            out.append(self._above + b"\n")
        self._above = b""

    def _update(self, out: list[bytes], now: float, is_quiet: bool) -> None:
        if self._update_interval_s is None or now < self._updated_at + self._update_interval_s:
            return
        newest = _visible(_overwritten(self._frame, self._unfinished if is_quiet and self._is_bar else b""))
        newest = newest or self._above
        if newest and newest != self._last_emitted:
            out.append(newest + b"\n")
            self._last_emitted, self._updated_at = newest, now
            if newest is self._above:
                self._above = b""


def _visible(frame: bytes) -> bytes:
    """Returns a frame as a separate line; empty if the frame only clears the line."""
    text = _strip_trailing(frame, CURSOR_UP)
    return text if text.strip() else b""


def _overwritten(frame: bytes, text: bytes) -> bytes:
    """Returns the line after `text` has overwritten it. Text that only sets colours is appended instead."""
    if not frame or _strip_trailing(text, _COLOURS):
        return text
    return _strip_trailing(frame, _COLOURS) + text if text else frame


def _strip_trailing(text: bytes, sequence: re.Pattern[bytes]) -> bytes:
    """Removes every match of `sequence` from the end of the text, in linear time."""
    end = len(text)
    while (begin := text.rfind(b"\x1b[", max(0, end - _MAX_SEQUENCE_BYTES), end)) >= 0:
        if sequence.fullmatch(text, begin, end) is None:
            break
        end = begin
    return text[:end]
