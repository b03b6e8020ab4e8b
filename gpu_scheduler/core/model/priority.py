"""Parses the priority of a job: a whole number, or a word in upper case that stands for one."""

from __future__ import annotations

import re

#: The words that are accepted wherever a priority is given.
PRIORITY_WORDS = {"CRITICAL": 0, "HIGH": 100, "NORMAL": 200, "LOW": 300}
#: Priority of a job whose line sets none (docs/design.md, Queue order).
NORMAL_PRIORITY = PRIORITY_WORDS["NORMAL"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def parse_priority(text: str) -> int:
    """Returns the number of a priority; lower numbers run first. Raises ValueError with the remedy."""
    if text in PRIORITY_WORDS:
        return PRIORITY_WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    word = text.strip().upper()
    if word in PRIORITY_WORDS:
        raise ValueError(f"priority {text!r} must be written in upper case: {word}")
    commas = ""
    if re.match(rf"\s*(?:-?[0-9]+|(?i:{'|'.join(PRIORITY_WORDS)}))\s*[;\t|]", text):
        commas = "; fields are separated by commas"
    *others, last = PRIORITY_WORDS
    words = f"{', '.join(others)} or {last}"
    raise ValueError(f"priority {text!r} is not a whole number such as 0 or 200, nor {words}{commas}")
