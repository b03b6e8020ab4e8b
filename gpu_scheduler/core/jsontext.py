"""JSON that other people and programs write: one parser with limits, which refuses what cannot be meant.

Every error is a ValueError in words, also where Python's own parser ends in another way or takes very long.
"""

from __future__ import annotations

import json
import math
from typing import Any

#: Objects and lists inside each other: more end Python's own parser in a RecursionError.
MOST_LEVELS = 100
#: Digits of one number: a longer one takes a time that grows with their square.
MOST_DIGITS = 1000


def decode(data: bytes) -> str:
    """The text in UTF-8, without its byte order mark. Raises ValueError naming a byte that is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec leaves out the mark where it counts.
        whole = error.object
        begin = whole.rfind(b"\n", 0, error.start) + 1
        column = len(whole[begin : error.start].decode("utf-8")) + 1
        line = whole.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line}, column {column}: byte 0x{whole[error.start]:02x} is not UTF-8"
        ) from None


def parse(text: str) -> Any:
    """The value in the text. Raises ValueError saying where it is not JSON, or which limit it exceeds."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {json.dumps(name)} stands twice in one object")
            seen.add(name)
    return found


def _integer(digits: str) -> int:
    _check(digits)
    return int(digits)


def _float(digits: str) -> float:
    _check(digits)
    value = float(digits)
    if math.isinf(value):
        # It would be written as Infinity, which is not JSON.
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _check(digits: str) -> None:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits; at most {MOST_DIGITS:,} are read")


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True
