"""Parses the GPU lists of jobs files and of `add --gpus`: "4,5,6,7", "0-3", "0-3,5", "all" or nothing.

A list contains only indices. Placement decides which of these GPUs can be used now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

#: The largest accepted index. The limit keeps a range such as 0-999999999 from being expanded.
MAX_INDEX = 1023

ACCEPTED_SYNTAX = "a list such as 0,2 or 0-3 or 0-3,5, or all"

_ITEM = re.compile(r"[ \t]*([0-9]{1,9})[ \t]*(?:-[ \t]*([0-9]{1,9})[ \t]*)?")


def parse_gpu_items(text: str, accepted: str = ACCEPTED_SYNTAX) -> tuple[int, ...]:
    """Parses a list into indices in their written order.

    accepted: the syntax that the error names. Raises ValueError for a malformed item.
    """
    gpus: list[int] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            what = f"GPU {item.strip()!r} is not a number or range" if item.strip() else "an item is empty"
            raise ValueError(f"GPU list {text.strip()!r}: {what}; write {accepted}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"GPU list {text.strip()!r}: {first}-{last} runs backward; write {last}-{first}")
        if last > MAX_INDEX:
            raise ValueError(f"GPU list {text.strip()!r}: GPU {last} is above the largest index, {MAX_INDEX}")
        gpus.extend(range(first, last + 1))
    return tuple(gpus)


@lru_cache(maxsize=1024)
def parse_gpu_list(text: str, known: frozenset[int] | None = None) -> tuple[int, ...] | None:
    """Parses a list into ascending indices; None means any GPU (an empty text, or `all`).

    known: the indices of the existing GPUs; None to accept any index. Raises ValueError, with the remedy, for
    a backward range, an empty item, a repeated GPU or an unknown GPU.
    """
    if text.strip(" \t").lower() in ("", "all"):
        return None
    gpus = parse_gpu_items(text)
    seen: set[int] = set()
    for gpu in gpus:
        if gpu in seen:
            raise ValueError(f"GPU list {text.strip()!r}: GPU {gpu} is listed twice; name it once")
        seen.add(gpu)
        if known is not None and gpu not in known:
            have = f"the GPUs are {format_gpu_list(known)}" if known else "there are no GPUs"
            raise ValueError(f"GPU list {text.strip()!r}: there is no GPU {gpu}; {have}")
    return tuple(sorted(gpus))


def format_gpu_list(gpus: Iterable[int] | None) -> str:
    """Formats indices as the shortest list for `parse_gpu_list`: "0-2,5" for (0, 1, 2, 5), "" for None."""
    if gpus is None:
        return ""
    runs: list[list[int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    texts = [",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join(texts)


def format_ranges(numbers: Sequence[int]) -> str:
    """Formats ids as ranges, such as "3, 7-9, 12-31". A range has at least three ids."""
    return format_gpu_list(numbers).replace(",", ", ")
