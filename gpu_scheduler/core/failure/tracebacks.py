"""Finds the Python tracebacks in a log, including chains, exception groups and output of several ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gpu_scheduler.core.failure.log_lines import LogLine

#: Maximum number of lines of one traceback that are searched for its end.
_MAX_LINES = 400
#: Maximum number of lines above a traceback that may connect it with an earlier one.
_MAX_LINES_ABOVE = 3
#: Beginnings of the lines that Python prints above errors that did not end the program, and between chained
#: errors.
_HARMLESS_HEADERS = ("Exception ignored", "Error in atexit", "--- Logging error", "Exception in thread")
_CHAINED_HEADERS = ("The above exception was", "During handling of the above")

_HEADER = re.compile(r"(?:Exception Group |Original )?Traceback \(most recent call last\):")
_NAME = r"[^\W\d][\w.]*(?:\.<locals>[\w.]*)*"
_ERROR = re.compile(rf"{_NAME}(?::(?: .*)?)?")
#: Errors with which a launcher only reports that another process failed.
_LAUNCHER_ERROR = re.compile(r"(?:.*\.)?(?:ChildFailedError|CalledProcessError)\b.*")
_ROOT_CAUSE = "Root Cause (first observed failure)"
_SUMMARY_FIELD = re.compile(r"\s+(rank|exitcode|traceback)\s*: (.*)")


@dataclass(frozen=True)
class Traceback:
    """The end of one traceback.

    text: the error; index: the index of the error's line; rank: the process that printed it; is_chained:
    another error led to this one; is_harmless: the error did not end the program.
    """

    text: str
    index: int
    rank: str
    is_chained: bool
    is_harmless: bool


def find_tracebacks(lines: Sequence[LogLine]) -> list[Traceback]:
    """Returns the tracebacks in order. The errors in an exception group are a part of its traceback."""
    found: list[Traceback] = []
    group: int | None = None
    for index, line in enumerate(lines):
        header = _HEADER.search(line.text)
        if header is None:
            continue
        if group is not None and line.depth > group:
            continue
        group = None
        end = _error_index(lines, index, line)
        if end is None:
            continue
        text = with_continuation(lines, end)
        if header[0].startswith("Exception Group"):
            group = line.depth
            text += _first_group_error(lines, end, line.depth)
        above = _line_above(lines, index)
        is_chained = above.startswith(_CHAINED_HEADERS)
        is_harmless = above.startswith(_HARMLESS_HEADERS) or (
            is_chained and bool(found) and found[-1].is_harmless
        )
        found.append(Traceback(text, end, line.rank, is_chained, is_harmless))
    return found


def final_traceback(tracebacks: Sequence[Traceback], lines: Sequence[LogLine]) -> Traceback | None:
    """Returns the traceback that ended the program.

    It is the last one that does not merely report another error.
    """
    serious = [one for one in tracebacks if not one.is_harmless] or list(tracebacks)
    if not serious or not _LAUNCHER_ERROR.fullmatch(serious[-1].text):
        return serious[-1] if serious else None
    cause = root_cause(lines)
    own = [one for one in serious if not _LAUNCHER_ERROR.fullmatch(one.text)]
    of_rank = [one for one in own if one.rank and one.rank == cause.get("rank", "").partition(" ")[0]]
    if own:
        return (of_rank or own)[-1]
    last = serious[-1]
    if not cause:
        return last
    name = last.text.partition(":")[0].rpartition(".")[2]
    details = [cause.get("exitcode", "?"), cause.get("traceback", "")]
    details = [text for text in details if text and not text.startswith("To enable traceback")]
    text = f"{name}: rank {cause.get('rank', '?')}: exit code {': '.join(details)}"
    return Traceback(text, last.index, "", last.is_chained, False)


def root_cause(lines: Sequence[LogLine]) -> dict[str, str]:
    """Returns the fields of torchrun's summary of the first process that failed; empty if it is missing."""
    index = next((i for i in range(len(lines) - 1, -1, -1) if _ROOT_CAUSE in lines[i].text), None)
    if index is None:
        return {}
    fields = (_SUMMARY_FIELD.fullmatch(line.text) for line in lines[index + 1 : index + 10])
    return {field[1]: field[2].strip() for field in fields if field is not None}


def with_continuation(lines: Sequence[LogLine], index: int) -> str:
    """Returns an error's line. If the message begins only on the next line of text, that line is appended."""
    text = lines[index].text.strip()
    if not text.endswith(":"):
        return text
    for line in lines[index + 1 : index + 4]:
        more = line.text.strip()
        if _HEADER.search(more):
            break
        if re.search(r"\w", more):
            return f"{text} {more}"
    return text.rstrip(":")


def _error_index(lines: Sequence[LogLine], header: int, header_line: LogLine) -> int | None:
    """Returns the index of the error line of the traceback that begins at `header`; None if it has none."""
    base: int | None = None
    for index in range(header + 1, min(len(lines), header + 1 + _MAX_LINES)):
        line = lines[index]
        if line.rank != header_line.rank:
            continue  # a line of another process
        if line.depth >= 0 > header_line.depth:
            continue  # what looks like a margin is a vertical bar in source code
        if line.depth != header_line.depth or _HEADER.search(line.text):
            return None
        text = line.text.lstrip(" ")
        indent = len(line.text) - len(text)
        if base is None and text.startswith('File "'):
            base = max(0, indent - 2)
        if text and indent <= (base or 0) and _ERROR.fullmatch(text):
            return index
    return None


def _first_group_error(lines: Sequence[LogLine], index: int, depth: int) -> str:
    for line in lines[index + 1 : index + 1 + _MAX_LINES]:
        if line.depth < 0:
            break
        if line.depth > depth and ":" in line.text and not line.text.startswith(" "):
            if _HEADER.search(line.text):
                continue
            if _ERROR.fullmatch(line.text):
                return f": {line.text}"
    return ""


def _line_above(lines: Sequence[LogLine], header: int) -> str:
    """Returns the nearest nonblank line above a header, among three lines of the same process, or ""."""
    above = (lines[index] for index in range(header - 1, -1, -1))
    own = (line.text.strip() for line in above if line.rank == lines[header].rank)
    return next(filter(None, islice(own, _MAX_LINES_ABOVE)), "")
