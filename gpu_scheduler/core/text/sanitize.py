"""Makes job output safe for a terminal by dropping control sequences, except for colours and progress bars.

Carriage returns, backspaces, tabs, newlines, SGR sequences (colours) and EL sequences (erase in line) are
kept. Bells, all other control characters, and sequences that move the cursor or set a mode, the title or the
clipboard are dropped.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum, auto

#: Characters that begin a control sequence or are dropped. A byte that is not UTF-8 is decoded as U+DC00 plus
#: the byte; the bytes 0x80 to 0x9f are control characters in that form too.
_SPECIAL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
_PARAMETERS = re.compile(r"[ -?]*")
_STRING_END = re.compile(r"[\x07\n\x18\x1a\x1b\x9c\udc9c]")
_ALLOWED_SEQUENCE = re.compile(r"[0-9:;]*m|[0-2]?K")
#: Maximum length in characters of a control sequence that is kept; a longer one is dropped.
_MAX_PARAMETER_CHARS = 64


class _State(Enum):
    TEXT = auto()
    ESCAPE = auto()
    INTERMEDIATE = auto()
    CONTROL = auto()
    STRING = auto()


class Sanitizer:
    """A filter for output that arrives in pieces of any size, which may be cut at any byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._state = _State.TEXT
        self._parameters = ""

    def feed(self, data: bytes) -> bytes:
        """Returns the safe part of the next piece, without an incomplete character or sequence at its end.

        The incomplete part is kept until the rest of it arrives.
        """
        return self._filter(self._decoder.decode(data))

    def flush(self) -> bytes:
        """Returns the remaining bytes if the output ends in the middle of a character."""
        return self._filter(self._decoder.decode(b"", final=True))

    def _filter(self, text: str) -> bytes:
        if self._state is _State.TEXT and _SPECIAL.search(text) is None:
            return text.encode("utf-8", "surrogateescape")
        out: list[str] = []
        index = 0
        while index < len(text):
            if self._state is _State.TEXT:
                index = self._filter_text(text, index, out)
            elif self._state is _State.CONTROL:
                index = self._filter_control(text, index, out)
            elif self._state is _State.STRING:
                index = self._filter_string(text, index)
            else:
                index = self._filter_escape(text, index)
        return "".join(out).encode("utf-8", "surrogateescape")

    def _filter_text(self, text: str, index: int, out: list[str]) -> int:
        found = _SPECIAL.search(text, index)
        if found is None:
            out.append(text[index:])
            return len(text)
        out.append(text[index : found.start()])
        byte = ord(found[0]) & 0xFF
        if byte == 0x1B:
            self._state = _State.ESCAPE
        elif byte == 0x9B:
            self._state = _State.CONTROL
        elif byte in (0x90, 0x98, 0x9D, 0x9E, 0x9F):
            self._state = _State.STRING
        return found.end()

    def _filter_escape(self, text: str, index: int) -> int:
        """Reads the character after ESC, or after ESC and intermediate characters."""
        begun, character = self._state, text[index]
        self._state = _State.TEXT
        if " " <= character <= "/":
            self._state = _State.INTERMEDIATE
        elif begun is _State.ESCAPE and character == "[":
            self._state = _State.CONTROL
        elif begun is _State.ESCAPE and character in "]PX^_":
            self._state = _State.STRING
        elif not "0" <= character <= "~":
            return index  # not part of a sequence
        return index + 1

    def _filter_control(self, text: str, index: int, out: list[str]) -> int:
        """Reads the parameters after CSI, then the final character, which selects the function."""
        run = _PARAMETERS.match(text, index)
        assert run is not None
        self._parameters = (self._parameters + run[0])[: _MAX_PARAMETER_CHARS + 1]
        index = run.end()
        if index == len(text):
            return index
        sequence, self._parameters, self._state = self._parameters + text[index], "", _State.TEXT
        if not "@" <= text[index] <= "~":
            return index
        if len(sequence) <= _MAX_PARAMETER_CHARS and _ALLOWED_SEQUENCE.fullmatch(sequence):
            out.append(f"\x1b[{sequence}")
        return index + 1

    def _filter_string(self, text: str, index: int) -> int:
        """Skips a title, a link or a similar string, which ends at the end of the line at the latest."""
        end = _STRING_END.search(text, index)
        if end is None:
            return len(text)
        self._state = _State.ESCAPE if end[0] == "\x1b" else _State.TEXT
        return end.start() if end[0] == "\n" else end.end()


def sanitized(data: bytes) -> bytes:
    """Returns the whole output of a program, made safe for a terminal."""
    sanitizer = Sanitizer()
    return sanitizer.feed(data) + sanitizer.flush()
