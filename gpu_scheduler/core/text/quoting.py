"""Parses the quotes, words and comments in one line of text. Expands nothing and never joins lines."""

from __future__ import annotations

import re

#: Characters that separate words and fields. Other Unicode white space counts as text, so that it causes an
#: error instead of going unnoticed.
BLANK = " \t"

_PLAIN = re.compile(r"[^'\"\\]*")
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+)|(?P<plain>[^ \t'"\\]+)|\\(?P<escaped>.)|'(?P<single>[^']*)'"""
    r'''|"(?P<double>(?:[^"\\]|\\.)*)"''',
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(["\\])')


def split_words(text: str) -> tuple[str, ...]:
    """Splits a text into words according to the POSIX quoting rules, like `shlex.split`. Expands nothing.

    Raises ValueError for an unclosed quote, with its column (from 1), and for a backslash at the end.
    """
    if _PLAIN.fullmatch(text):
        return tuple(text.split(" ")) if _single_spaced(text) else _plain_words(text)
    words: list[str] = []
    word: str | None = None
    at = 0
    while at < len(text):
        piece = _TOKEN.match(text, at)
        if piece is None:
            if text[at] == "\\":
                raise ValueError("the text ends in a backslash")
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


_SHELL_TOKEN = re.compile(
    r"""(?P<quoted>\$'(?:[^'\\]|\\.)*'|'[^']*'|"(?:[^"\\]|\\.)*"|\\.#*)|(?P<comment>(?:(?<=[ \t])|^)#)"""
    r"""|(?P<open>["'])|[^'"\\$#]+|.""",
    re.DOTALL,
)


def find_comment(text: str) -> int | None:
    """Returns the index of the `#` that begins a comment; None if there is no comment.

    The `#` must be outside quotes, at the start or after a blank. Nothing after an unclosed quote is a
    comment.
    """
    if "#" not in text:
        return None
    for piece in _SHELL_TOKEN.finditer(text):
        if piece.lastgroup == "comment":
            return piece.start()
        if piece.lastgroup == "open":
            return None
    return None


_QUOTED_OR_EXPANDED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[$`]""", re.DOTALL)
_ESCAPED_OR_EXPANDED = re.compile(r"\\?[$`]|\\.", re.DOTALL)


def mark_expansions(text: str) -> str:
    """Returns a shell text with a NUL in place of each `$` and backtick that the shell expands."""

    def marked(piece: re.Match[str]) -> str:
        found = piece[0]
        if found.startswith('"'):  # `split_words` keeps the backslash before these two characters
            return _ESCAPED_OR_EXPANDED.sub(lambda one: _IN_QUOTES.get(one[0], one[0]), found)
        return "\0" if found in "$`" else found

    return _QUOTED_OR_EXPANDED.sub(marked, text)


_IN_QUOTES = {"$": "\0", "`": "\0", "\\$": "$", "\\`": "`"}


def mask_quoted(text: str) -> str | None:
    """Returns a shell text with every quoted part replaced by `_`; None if a quote is not closed."""
    pieces = []
    for piece in _SHELL_TOKEN.finditer(text):
        if piece.lastgroup == "open":
            return None
        pieces.append("_" if piece.lastgroup == "quoted" else piece[0])
    return "".join(pieces)
