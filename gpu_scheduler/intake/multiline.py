"""Commands that were written over several lines: the lines that would complete an unfinished command are part
of the same mistake, so that the middle of a loop is never run as a job of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpu_scheduler.core.attributes import end_of_block
from gpu_scheduler.core.csvline import meant_as_csv
from gpu_scheduler.core.jobline import Malformed

#: How many lines further the end of a command is looked for.
FARTHEST = 60

#: What the last line of a compound command holds; a here-document ends with a word alone on its line.
_CLOSES = re.compile(r"\b(?:done|fi|esac)\b|[})`]|^\w+$")


def with_completions(
    texts: Sequence[str], results: Sequence[object], completes: Callable[[str], bool], before: int = 0
) -> dict[int, Malformed]:
    """Index of a line -> the mistake that it is part of. texts: the lines without their endings; results:
    what each is, a Malformed for a mistake; completes: whether lines joined by line breaks are whole
    commands; before: how many lines of the file come before these."""
    found: dict[int, Malformed] = {}
    for index, result in enumerate(results):
        if index in found or not isinstance(result, Malformed) or not result.unfinished:
            continue
        reason = f"it belongs to line {before + index + 1}, which is not a whole command"
        for other in range(index + 1, _end(texts, index, completes)):
            found[other] = Malformed(reason, result.accepted)
    return found


def _end(texts: Sequence[str], start: int, completes: Callable[[str], bool]) -> int:
    """Behind the last line of the command that begins at `start`; start + 1 where none completes it."""
    behind = start
    while behind + 1 < len(texts) and _continued(texts[behind]):
        behind += 1
    if behind > start:
        return behind + 1
    first = texts[start].strip()
    if first.startswith("["):
        # To bash the attributes would be a command, and what follows its arguments.
        first = first[(end_of_block(first) or 0) + 1 :]
    for last in range(start + 1, min(len(texts), start + 1 + FARTHEST)):
        text = texts[last].strip()
        if text.startswith("[") or meant_as_csv(text):
            return start + 1
        likely = last == start + 1 or _CLOSES.search(text)
        if likely and completes("\n".join([first, *texts[start + 1 : last + 1]])):
            return last + 1
    return start + 1


def _continued(text: str) -> bool:
    bare = text.rstrip(" \t")
    return bare.endswith("\\") and (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
