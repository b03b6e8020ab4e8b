"""Parses what users and other programs have written: UTF-8, JSON, and the quotes and comments of a line.

Every error is a ValueError with a readable message.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

#: Characters that separate words and fields. Other Unicode white space counts as text, so that it causes an
#: error instead of going unnoticed.
BLANK = " \t"

_PIECE = r"""[^ \t'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
_WORD = re.compile(f"(?:{_PIECE})+", re.DOTALL)
_WORDS = re.compile(rf"(?:[ \t]|{_PIECE})*", re.DOTALL)
_QUOTED = re.compile(r"""\\(.)|'([^']*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)


def split_words(text: str) -> tuple[str, ...]:
    """Splits a text into words according to the POSIX quoting rules, like `shlex.split`. Expands nothing.

    Raises ValueError for an unclosed quote, with its column (from 1), and for a backslash at the end.
    """
    if "'" not in text and '"' not in text and "\\" not in text:
        return tuple(filter(None, text.replace("\t", " ").split(" ")))
    complete = _WORDS.match(text)
    if complete is not None and (end := complete.end()) < len(text):
        if text[end] == "\\":
            raise ValueError("the text ends in a backslash")
        raise ValueError(f"the quote {text[end]} at column {end + 1} is not closed")
    return tuple(_QUOTED.sub(_unquoted, word) for word in _WORD.findall(text))


def _unquoted(found: re.Match[str]) -> str:
    escaped, single, double = found.groups()
    if double is not None:
        return re.sub(r'\\(["\\])', r"\1", double)
    return escaped or single or ""


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


#: Maximum nesting depth of objects and lists; Python's own parser raises RecursionError for more.
MAX_DEPTH = 100
#: Maximum number of digits in a number; the time to parse a number grows with the square of its length.
MAX_DIGITS = 1000


def decode_text(data: bytes) -> str:
    """Decodes UTF-8 text and drops its byte order mark.

    Raises ValueError with the position of the first byte that is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.object` lacks the byte order mark, so the positions do not count it.
        whole = error.object
        begin = whole.rfind(b"\n", 0, error.start) + 1
        column = len(whole[begin : error.start].decode("utf-8")) + 1
        line = whole.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line}, column {column}: byte 0x{whole[error.start]:02x} is not UTF-8"
        ) from None


def parse_json(data: str | bytes) -> Any:
    """Parses JSON, with limits, and rejects ambiguous input. Bytes are decoded first.

    Raises ValueError with the position of the error or the limit that was exceeded, even where Python's own
    parser would raise another exception or take very long.
    """
    text = data if isinstance(data, str) else decode_text(data)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {json.dumps(name)} occurs twice in one object")
            seen.add(name)
    return found


def _integer(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _float(digits: str) -> float:
    _check_digits(digits)
    value = float(digits)
    if math.isinf(value):
        # Python would write this value as Infinity, which is not JSON.
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _check_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; at most {MAX_DIGITS:,} are allowed")


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True
