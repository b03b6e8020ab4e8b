"""Makes the output of jobs safe for a terminal, and drops the overwritten frames of progress bars."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from gpu_scheduler.core.text.formatting import safe_text

# Matches terminal escape sequences in job logs, and finds the last visible line of a log.


ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?"
    r"|[ -/]*[0-Z\\^-~])?"
)
#: Prefixes of the lines that the runner adds to a log: its header lines, and its last line.
_HEADER, _TRAILER = "# ", "--- "


def last_visible_line(tail: str) -> str | None:
    """Returns the last line of a log's tail that shows any text, or the newest state of a progress bar.

    Returns None if the job has printed nothing yet.
    """
    lines = tail.split("\n")
    begin = 0
    while begin < len(lines) and lines[begin].startswith(_HEADER):
        begin += 1
    for line in reversed(lines[begin:]):
        for frame in reversed(line.split("\r")):
            text = ESCAPE.sub("", frame).strip()
            if text and not text.startswith(_TRAILER):
                return text
    return None


# Makes job output safe for a terminal by dropping control sequences, except for colours and progress bars.
#
# Carriage returns, backspaces, tabs, newlines, SGR sequences (colours) and EL sequences (erase in line) are
# kept. Bells, all other control characters, and sequences that move the cursor or set a mode, the title or
# the clipboard are dropped.


#: Maximum length in characters of the part of an unfinished sequence that is kept: enough to tell that it is
#: longer than those that are allowed.
_MAX_SEQUENCE_CHARS = 66
_CSI, _STRING = r"(?:\x1b\[|[\x9b\udc9b])", r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f\udc90\udc98\udc9d-\udc9f])"
#: A title, a link or a similar string ends at the end of the line at the latest.
_CONTENT = r"[^\x07\n\x18\x1a\x1b\x9c\udc9c]*"
#: A control character that is dropped, alone or at the beginning of a sequence. A byte that is not UTF-8 is
#: decoded as U+DC00 plus the byte; the bytes 0x80 to 0x9f are control characters in that form too.
_SPECIAL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
_CONTROL = re.compile(
    rf"(?P<unfinished>{_CSI}[ -?]*|{_STRING}{_CONTENT}|\x1b[ -/]*)\Z"
    rf"|{_CSI}(?P<csi>[ -?]*[@-~]?)|{_STRING}{_CONTENT}[\x07\x18\x1a\x9c\udc9c]?|\x1b[ -/]*[0-~]?"
    rf"|{_SPECIAL.pattern}"
)
_ALLOWED_CSI = re.compile(r"[0-9:;]{0,63}m|[0-2]?K")


class Sanitizer:
    """A filter for output that arrives in pieces of any size, which may be cut at any byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._unfinished = ""

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Returns the safe part of the next piece, without an incomplete character or sequence at its end.

        The incomplete part is kept until the rest of it arrives.
        """
        text = self._unfinished + self._decoder.decode(data, final=is_last)
        self._unfinished = ""
        if _SPECIAL.search(text):  # a shortcut: nearly all output is plain text
            text = _CONTROL.sub(self._replacement, text)
        return text.encode("utf-8", "surrogateescape")

    def flush(self) -> bytes:
        """Returns the remaining bytes if the output ends in the middle of a character."""
        return self.feed(b"", is_last=True)

    def _replacement(self, found: re.Match[str]) -> str:
        self._unfinished = (found["unfinished"] or "")[:_MAX_SEQUENCE_CHARS]
        return f"\x1b[{found['csi']}" if found["csi"] and _ALLOWED_CSI.fullmatch(found["csi"]) else ""


def sanitized(data: bytes) -> bytes:
    """Returns the whole output of a program, made safe for a terminal."""
    return Sanitizer().feed(data, is_last=True)


def plain_lines(lines: Iterable[str]) -> list[str]:
    """Returns lines of a log as plain text, each with only the last frame of its progress bar."""
    frames = (line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines)
    plain = (sanitized(one.encode("utf-8", "replace")).decode("utf-8", "replace") for one in frames)
    return [safe_text(ESCAPE.sub("", one)) for one in plain]


# Drops the overwritten frames of progress bars from a job's output, line by line.
#
# After a carriage return, the line is drawn again from its beginning, so the text after its last carriage
# return is the line's last frame. A line that moves the cursor up, as nested progress bars do, overwrites the
# lines above it and counts as a frame as well.


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
