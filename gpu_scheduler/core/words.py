"""Quotes, words and comments of one line of text. Nothing is expanded and nothing joins two lines."""

from __future__ import annotations

import re

#: What separates words and fields. Other white space of Unicode is text, so that it shows up as an error.
BLANK = " \t"

_PLAIN = re.compile(r"[^'\"\\]*")
_PIECE = re.compile(
    r"""(?P<blank>[ \t]+)|(?P<plain>[^ \t'"\\]+)|\\(?P<escaped>.)|'(?P<single>[^']*)'"""
    r'''|"(?P<double>(?:[^"\\]|\\.)*)"''',
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(["\\])')


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text by POSIX quoting (as Python's `shlex.split` reads it), without any expansion.

    Raises ValueError naming the column (from 1) of a quote that is not closed, or of a last backslash.
    """
    if _PLAIN.fullmatch(text):
        return tuple(text.split(" ")) if _single_spaced(text) else _plain_words(text)
    words: list[str] = []
    word: str | None = None
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            if text[at] == "\\":
                raise ValueError("a backslash ends the text with nothing behind it")
            raise ValueError(f"the quote {text[at]} at column {at + 1} is not closed")
        at = piece.end()
        if piece.lastgroup == "blank":
            if word is not None:
                words.append(word)
            word = None
            continue
        value = piece[piece.lastgroup or 0]
        word = (word or "") + (_IN_DOUBLE.sub(r"\1", value) if piece.lastgroup == "double" else value)
    if word is not None:
        words.append(word)
    return tuple(words)


def _single_spaced(text: str) -> bool:
    return bool(text) and "  " not in text and "\t" not in text and text[0] != " " and text[-1] != " "


def _plain_words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[ \t]+", text) if word)


_SHELL_PIECE = re.compile(
    r"""(?P<quoted>\$'(?:[^'\\]|\\.)*'|'[^']*'|"(?:[^"\\]|\\.)*"|\\.#*)|(?P<comment>(?:(?<=[ \t])|^)#)"""
    r"""|(?P<open>["'])|[^'"\\$#]+|.""",
    re.DOTALL,
)


def comment_at(text: str) -> int | None:
    """Where the comment begins: a `#` that begins the text or follows a blank outside quotes; None = none.

    A quote that is never closed protects what follows it.
    """
    if "#" not in text:
        return None
    for piece in _SHELL_PIECE.finditer(text):
        if piece.lastgroup == "comment":
            return piece.start()
        if piece.lastgroup == "open":
            return None
    return None


def unquoted(text: str) -> str | None:
    """A shell text with `_` for everything that is quoted; None where a quote is not closed."""
    pieces = []
    for piece in _SHELL_PIECE.finditer(text):
        if piece.lastgroup == "open":
            return None
        pieces.append("_" if piece.lastgroup == "quoted" else piece[0])
    return "".join(pieces)


def quotes_closed(text: str) -> bool:
    """Whether every quote of a shell text is closed, as far as can be told without a shell."""
    return unquoted(text) is not None
