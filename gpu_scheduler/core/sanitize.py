"""Makes job output safe for a terminal by dropping control sequences other than colours and progress bars.

Carriage returns, backspaces, tabs, newlines, SGR sequences (colours) and EL sequences (erase in line) pass.
Sequences that move the cursor, set modes, titles or the clipboard, bells and other control characters do not.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum, auto

#: Characters that begin a sequence or are dropped. A byte that is not UTF-8 is decoded as U+DC00 + the byte;
#: 0x80 to 0x9f are control characters in that form too.
_SPECIAL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
_PARAMETERS = re.compile(r"[ -?]*")
_STRING_END = re.compile(r"[\x07\n\x18\x1a\x1b\x9c\udc9c]")
_PASSED = re.compile(r"[0-9:;]*m|[0-2]?K")
#: Most characters of a sequence that passes; a longer one is dropped.
_LONGEST = 64


class _In(Enum):
    TEXT = auto()
    ESCAPE = auto()
    INTERMEDIATE = auto()
    CONTROL = auto()
    STRING = auto()


class Sanitizer:
    """A filter that takes output in pieces of any size, cut at any byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._in = _In.TEXT
        self._parameters = ""

    def feed(self, data: bytes) -> bytes:
        """Returns the safe part of the next piece. A cut character or sequence waits for the rest."""
        return self._passed(self._decoder.decode(data))

    def rest(self) -> bytes:
        """Returns the remaining bytes if the output ends within a character."""
        return self._passed(self._decoder.decode(b"", final=True))

    def _passed(self, text: str) -> bytes:
        if self._in is _In.TEXT and _SPECIAL.search(text) is None:
            return text.encode("utf-8", "surrogateescape")
        out: list[str] = []
        index = 0
        while index < len(text):
            if self._in is _In.TEXT:
                index = self._text(text, index, out)
            elif self._in is _In.CONTROL:
                index = self._control(text, index, out)
            elif self._in is _In.STRING:
                index = self._string(text, index)
            else:
                index = self._escape(text, index)
        return "".join(out).encode("utf-8", "surrogateescape")

    def _text(self, text: str, at: int, out: list[str]) -> int:
        found = _SPECIAL.search(text, at)
        if found is None:
            out.append(text[at:])
            return len(text)
        out.append(text[at : found.start()])
        byte = ord(found[0]) & 0xFF
        if byte == 0x1B:
            self._in = _In.ESCAPE
        elif byte == 0x9B:
            self._in = _In.CONTROL
        elif byte in (0x90, 0x98, 0x9D, 0x9E, 0x9F):
            self._in = _In.STRING
        return found.end()

    def _escape(self, text: str, at: int) -> int:
        """Continues after ESC, or after ESC and intermediate characters."""
        begun, character = self._in, text[at]
        self._in = _In.TEXT
        if " " <= character <= "/":
            self._in = _In.INTERMEDIATE
        elif begun is _In.ESCAPE and character == "[":
            self._in = _In.CONTROL
        elif begun is _In.ESCAPE and character in "]PX^_":
            self._in = _In.STRING
        elif not "0" <= character <= "~":
            return at  # not part of a sequence
        return at + 1

    def _control(self, text: str, at: int, out: list[str]) -> int:
        """Continues after CSI: parameters, then the final character that selects the function."""
        run = _PARAMETERS.match(text, at)
        assert run is not None
        self._parameters = (self._parameters + run[0])[: _LONGEST + 1]
        at = run.end()
        if at == len(text):
            return at
        sequence, self._parameters, self._in = self._parameters + text[at], "", _In.TEXT
        if not "@" <= text[at] <= "~":
            return at
        if len(sequence) <= _LONGEST and _PASSED.fullmatch(sequence):
            out.append(f"\x1b[{sequence}")
        return at + 1

    def _string(self, text: str, at: int) -> int:
        """Skips a title, a link or the like, which ends at a newline at the latest."""
        end = _STRING_END.search(text, at)
        if end is None:
            return len(text)
        self._in = _In.ESCAPE if end[0] == "\x1b" else _In.TEXT
        return end.start() if end[0] == "\n" else end.end()


def sanitized(data: bytes) -> bytes:
    """Returns complete output, made safe for a terminal."""
    sanitizer = Sanitizer()
    return sanitizer.feed(data) + sanitizer.rest()
