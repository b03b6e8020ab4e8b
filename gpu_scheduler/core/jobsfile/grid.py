"""Expands a sweep, such as `--grid lr=0.1,0.01 --grid seed=1..3`, into a job for each combination of values.

`{lr}` in a text stands for the value of the key lr. `${lr}` and braces that do not enclose a single word,
such as those of JSON, are ordinary text, and `{{word}}` stands for the text {word}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from gpu_scheduler.core.model.job_spec import MAX_LENGTH

#: Maximum number of jobs of one grid.
MAX_JOBS = 10_000

_KEY = "[A-Za-z_][A-Za-z0-9_-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<text>{_KEY})\}}\}}|(?<!\$)\{{(?P<key>{_KEY})\}}")
_VALUE = r""""[^"]*"|'[^']*'|[^,"']+"""
_INTEGERS = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")


def combinations(items: Iterable[str], *, is_zip: bool = False) -> list[dict[str, str]]:
    """Returns the combinations of the values of each key. The first key changes most slowly.

    items: as in `lr=0.1,0.01`, `seed=1..3` and `text="a,b",c`; is_zip: whether to combine the first values of
    all keys, then the second ones, and so on. Raises ValueError for an item that is not valid.
    """
    grid: dict[str, list[str]] = {}
    for item in items:
        key, _, text = item.partition("=")
        if not re.fullmatch(_KEY, key) or not re.fullmatch(f"(?:{_VALUE})(?:,(?:{_VALUE}))*", text):
            raise ValueError(f'{item!r} is not KEY=VALUES, such as lr=0.1,0.01 or seed=1..3 or x="a,b",c')
        values = [value for one in re.findall(_VALUE, text) for value in _expanded(one)]
        if key in grid or len(set(values)) < len(values):
            raise ValueError(f"{item}: {key if key in grid else 'a value'} is given twice; give it once")
        grid[key] = values
    sizes = [len(values) for values in grid.values()]
    if not grid:
        raise ValueError("--zip combines the values of several --grid; there is none")
    if is_zip and len(set(sizes)) > 1:
        counts = ", ".join(f"{key} has {len(values):,}" for key, values in grid.items())
        raise ValueError(f"--zip needs the same number of values for each key, but {counts}")
    if (count := sizes[0] if is_zip else prod(sizes)) > MAX_JOBS:
        raise ValueError(f"there are {count:,} combinations; at most {MAX_JOBS:,} are possible")
    rows = list(zip(*grid.values(), strict=True)) if is_zip else product(*grid.values())
    return [dict(zip(grid, row, strict=True)) for row in rows]


def _expanded(value: str) -> Sequence[str]:
    """Returns the numbers of a range such as 1..3, or the value without its quotes."""
    found = _INTEGERS.fullmatch(value)
    if found is None and ".." in value and value[-1].isdigit() and not value.strip("-.:0123456789"):
        raise ValueError(f"{value} is not a range such as 1..3; list the values, as in 0.1,0.5 or 0,2,4")
    if found is None:
        return [value[1:-1] if value[0] in "\"'" else value]
    first, last = int(found[1]), int(found[2])
    if abs(last - first) >= MAX_JOBS:
        raise ValueError(f"{value} has more than {MAX_JOBS:,} values")
    step = 1 if first <= last else -1
    return [*map(str, range(first, last + step, step))]


def filled(work: Mapping[str, Any], grid: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Returns these values with the values of each combination in the place of their placeholders.

    work: texts, and lists and mappings of texts. Raises ValueError if a placeholder is no key of the grid, or
    if a key has no placeholder.
    """
    # In JSON, a brace that does not belong to a text is never followed by a word.
    text, keys = json.dumps(work), list(grid[0])
    used = {found["key"] for found in _PLACEHOLDER.finditer(text)} - {None}
    for key in sorted(used.difference(keys)):
        raise ValueError(
            f"{{{key}}} is none of the keys {', '.join(keys)}; give its values with --grid, or write"
            f" {{{{{key}}}}} for the text itself"
        )
    for key in keys:
        if key not in used:
            raise ValueError(f"{key} is not used; write {{{key}}} where its values belong")
    return [json.loads(_PLACEHOLDER.sub(lambda found: _value(found, one), text)) for one in grid]  # noqa: B023


def _value(found: re.Match[str], combination: Mapping[str, str]) -> str:
    return f"{{{found['text']}}}" if found["text"] else json.dumps(combination[found["key"]])[1:-1]


def job_names(base: str, grid: Collection[Mapping[str, str]]) -> list[str]:
    """Returns the name of each job, such as train/lr=0.1/seed=2.

    If a name would be too long, or that of two jobs, the jobs are numbered instead, as in train/1.
    """
    names = ["/".join([base, *(f"{key}={safe(value)}" for key, value in one.items())]) for one in grid]
    if len(set(names)) < len(names) or max(map(len, names)) > MAX_LENGTH:
        return [f"{base}/{number}" for number in range(1, len(names) + 1)]
    return names


def safe(text: str) -> str:
    """Returns a text in which every character that no part of a name may contain is replaced by -."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "-", text)
