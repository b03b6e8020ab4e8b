"""The names of jobs, the groups that they form, and what a reference to jobs by name means.

A group is the part of a name before the first `/`. A reference is a name, a group or a pattern with `*`, `?`
or `[…]`. An exact name wins over a group, and a group over a pattern. A table of names has a group under its
name with a final `/`, which no job's name can have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

MAX_LENGTH = 128
ACCEPTED = f"1 to {MAX_LENGTH} letters, digits, _ . = or -, in parts that are separated by /"
#: A regular expression for names of any length.
NAME = "[A-Za-z0-9_.=-]+(?:/[A-Za-z0-9_.=-]+)*"
_PATTERN = re.compile(rf"[A-Za-z0-9_.=/*?\[\]!-]{{1,{MAX_LENGTH}}}")


def is_name(text: str) -> bool:
    """Returns whether a job may have this name."""
    return len(text) <= MAX_LENGTH and re.fullmatch(NAME, text) is not None


def is_pattern(reference: str) -> bool:
    """Returns whether a reference is a pattern."""
    return any(special in reference for special in "*?[")


def is_reference(text: str) -> bool:
    """Returns whether a text is a name, a group or a pattern."""
    return is_name(text) or (is_pattern(text) and _PATTERN.fullmatch(text) is not None)


def parse_job_ref(text: str) -> int | range | str:
    """Reads a reference to jobs: a number, a range of numbers such as 5-9, a name, a group or a pattern.

    Raises ValueError.
    """
    number = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", text, re.ASCII)
    if number is not None:
        first, last = int(number[1]), int(number[2] or number[1])
        if not 1 <= first <= last:
            raise ValueError(f"{text!r} is neither a job number such as 3 nor a range such as 5-9")
        return first if number[2] is None else range(first, last + 1)
    if not is_reference(text):
        raise ValueError(
            f"{text!r} is neither a job number (3), a range of numbers (5-9) nor a job name; `status` lists"
            " the jobs; separate several jobs with spaces"
        )
    return text


def group_of(name: str) -> str | None:
    """Returns the group of a job with this name; None if it belongs to none."""
    group, slash, _ = name.partition("/")
    return group if slash else None


def keys_of(name: str) -> tuple[str, ...]:
    """Returns the keys under which a table of names has a job: its name, and its group with a final `/`."""
    group = group_of(name)
    return (name,) if group is None else (name, f"{group}/")


def meant_by(reference: str, keys: Collection[str]) -> list[str]:
    """Returns the keys of a table of names that a reference means; an empty list if it means nothing."""
    if reference in keys:
        return [reference]
    if f"{reference}/" in keys:
        return [f"{reference}/"]
    if not is_pattern(reference):
        return []
    return [key for key in keys if not key.endswith("/") and fnmatchcase(key, reference)]


def references_to(key: str, patterns: Iterable[str]) -> list[str]:
    """Returns the references that may mean a key of a table of names. patterns: those that exist."""
    group = group_of(key)
    found = [key] if group is None else [key, group]
    return [*found, *(pattern for pattern in patterns if fnmatchcase(key, pattern))]
