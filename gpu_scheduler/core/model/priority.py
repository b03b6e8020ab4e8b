"""Parses the priority of a job: a whole number, or a word that stands for one."""

from __future__ import annotations

import re

#: The words that are accepted wherever a priority is given.
PRIORITY_WORDS = {"CRITICAL": 0, "HIGH": 100, "NORMAL": 200, "LOW": 300}
#: Priority of a job whose line sets none (docs/design.md, Queue order).
NORMAL_PRIORITY = PRIORITY_WORDS["NORMAL"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def parse_priority(text: str) -> int:
    """Returns the number of a priority; lower numbers run first. Raises ValueError with the remedy."""
    if text.upper() in PRIORITY_WORDS:
        return PRIORITY_WORDS[text.upper()]
    if _INTEGER.fullmatch(text):
        return int(text)
    *others, last = PRIORITY_WORDS
    words = f"{', '.join(others)} or {last}"
    raise ValueError(f"priority {text!r} is not a whole number such as 0 or 200, nor {words}")
