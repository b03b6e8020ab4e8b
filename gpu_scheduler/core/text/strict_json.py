"""Parses JSON that users or other programs have written, with limits, and rejects ambiguous input.

Every error is a ValueError with a readable message, even where Python's own parser would raise another
exception or take very long.
"""

from __future__ import annotations

import json
import math
from typing import Any

#: Maximum nesting depth of objects and lists; Python's own parser raises RecursionError for more.
MAX_DEPTH = 100
#: Maximum number of digits in a number; the time to parse a number grows with the square of its length.
MAX_DIGITS = 1000


def decode(data: bytes) -> str:
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


def parse(text: str) -> Any:
    """Parses the text. Raises ValueError with the position of the error or the limit that was exceeded."""
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
