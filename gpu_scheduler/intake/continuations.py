"""Finds commands that were written over several lines.

The lines that would complete an unfinished command are part of the same mistake, so that the body of a loop
never runs as a job of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpu_scheduler.core.jobsfile.attributes import find_block_end
from gpu_scheduler.core.jobsfile.csv_line import looks_like_csv
from gpu_scheduler.core.jobsfile.job_line import Malformed

#: Maximum number of lines searched for the end of a command.
MAX_LINES_AHEAD = 60

#: Matches the last line of a compound command; a here-document ends with a word alone on its line.
_CLOSES = re.compile(r"\b(?:done|fi|esac)\b|[})`]|^\w+$")


def find_continuations(
    texts: Sequence[str], results: Sequence[object], is_complete: Callable[[str], bool], lines_before: int = 0
) -> dict[int, Malformed]:
    """Maps the index of each line that continues an unfinished command to the mistake that it is part of.

    texts: the lines without their endings; results: the result of each, a Malformed for a mistake; completes:
    whether lines joined by line breaks are complete commands; before: the number of preceding lines of the
    file.
    """
    found: dict[int, Malformed] = {}
    for index, result in enumerate(results):
        if index in found or not isinstance(result, Malformed) or not result.unfinished:
            continue
        reason = f"it belongs to line {lines_before + index + 1}, which is not a complete command"
        for other in range(index + 1, _command_end(texts, index, is_complete)):
            found[other] = Malformed(reason, result.accepted_form)
    return found


def _command_end(texts: Sequence[str], start: int, is_complete: Callable[[str], bool]) -> int:
    """Returns the index after the last line of the command at `start`; start + 1 if none completes it."""
    behind = start
    while behind + 1 < len(texts) and _ends_in_backslash(texts[behind]):
        behind += 1
    if behind > start:
        return behind + 1
    first = texts[start].strip()
    if first.startswith("["):
        # bash would take the attributes for a command and the rest for its arguments.
        first = first[(find_block_end(first) or 0) + 1 :]
    for last in range(start + 1, min(len(texts), start + 1 + MAX_LINES_AHEAD)):
        text = texts[last].strip()
        if text.startswith("[") or looks_like_csv(text):
            return start + 1
        likely = last == start + 1 or _CLOSES.search(text)
        if likely and is_complete("\n".join([first, *texts[start + 1 : last + 1]])):
            return last + 1
    return start + 1


def _ends_in_backslash(text: str) -> bool:
    bare = text.rstrip(" \t")
    return bare.endswith("\\") and (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
