"""Edits entries in the text of llm_config.json and leaves the rest of the text unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def with_model_entries(text: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of llm_config.json with these entries in "models"; everything else is unchanged.

    An entry replaces the one with the same name, if there is one. The text must be well-formed JSON.
    """
    for name, entry in entries.items():
        text = _with_entry(text, name, json.dumps(entry, ensure_ascii=False))
    return text


def _with_entry(text: str, name: str, value: str) -> str:
    top = _skip_blanks(text, 0)
    models = [start for key, start, _ in _members(text, top) if key == "models"]
    if not models:
        return _with_member(text, top, "models", "{\n    " + f"{_quoted(name)}: {value}" + "\n  }")
    spans = [(start, end) for key, start, end in _members(text, models[-1]) if key == name]
    if not spans:
        return _with_member(text, models[-1], name, value)
    start, end = spans[-1]  # if a name occurs twice, the last entry counts
    return text[:start] + value + text[end:]


def _with_member(text: str, at: int, name: str, value: str) -> str:
    """Adds a member at the end of the object that begins at `at`."""
    ends = [end for _, _, end in _members(text, at)]
    first = _skip_blanks(text, at + 1)
    between = text[at + 1 : first]
    if not ends:
        return f"{text[: at + 1]}\n  {_quoted(name)}: {value}\n{text[first:]}"
    blank = between if "\n" in between else " "
    return f"{text[: ends[-1]]},{blank}{_quoted(name)}: {value}{text[ends[-1] :]}"


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yields (key, start of value, end of value) for each member of the object that begins at `at`."""
    at = _skip_blanks(text, at + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        start = _skip_blanks(text, _skip_blanks(text, after) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip_blanks(text, end)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)


def _skip_blanks(text: str, at: int) -> int:
    """Returns the first position at or after `at` that is not blank."""
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
