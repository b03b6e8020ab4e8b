"""Finds the error that ended a program in the end of its log.

Mostly that is a Python traceback, be it chained, of an exception group, of one rank among several, or mixed
with colours and progress bars. Only one line of it is returned; a log without an error gives None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.text.escapes import ESCAPE

#: Most lines of one traceback that are searched for its end.
_MAX_TRACEBACK_LINES = 400
#: Beginnings of what Python prints about errors that did not end the program.
_HARMLESS_HEADERS = ("Exception ignored in", "Error in atexit", "--- Logging error", "Exception in thread")
_CHAINED_HEADERS = ("The above exception was", "During handling of the above")

#: Prefixes that launchers put before each line of a process: torch, torchrun, accelerate, ray.
_RANK = re.compile(r"\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|stderr: |\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ")
_MARGIN = re.compile(r"( +)(?:[|+](?: |$)|\+[-+]{3,}.*)")
_HEADER = re.compile(r"(?:Exception Group |Original )?Traceback \(most recent call last\):")
_NAME = r"[^\W\d][\w.]*(?:\.<locals>[\w.]*)*"
_ERROR = re.compile(rf"{_NAME}(?::(?: .*)?)?")
_LOOSE_ERROR = re.compile(r"(?:[^\W\d][\w.]*\.)?\w*(?:Error|Exception)(?:: .*)?")
#: Errors by which a program only reports that another one failed.
_WRAPPER = re.compile(r"(?:.*\.)?(?:ChildFailedError|CalledProcessError)\b.*")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_SUMMARY_FIELD = re.compile(r"\s+(rank|exitcode|traceback)\s*: (.*)")
#: Last lines of other programs: the shell, argparse and the like, Python without its script, aborting C++.
_NON_PYTHON_ERROR = re.compile(
    r".*: (?:command not found|No such file or directory|Permission denied|Is a directory|cannot execute.*)"
    r"|.*: Exec format error|\S+: error: .*|.*can't open file .*|\s+what\(\):  .*|.*Fatal Python error: .*"
)


@dataclass(frozen=True)
class _Line:
    """A line without its rank and margin. depth: blanks before the bar of an exception group; -1: no bar."""

    text: str
    rank: str = ""
    depth: int = -1


@dataclass(frozen=True)
class _Traceback:
    """The end of one traceback."""

    text: str
    index: int
    rank: str
    is_harmless: bool


def last_error(tail: str, max_lines_after: int | None = None) -> str | None:
    """Returns the line that names the error that ended the program; None if there is none.

    max_lines_after: an error followed by more lines than this did not end the program.
    """
    lines = list(_lines(tail))
    found = _tracebacks(lines)
    chosen = _final_traceback(found, lines)
    if chosen is None or (max_lines_after is not None and len(lines) - chosen.index > max_lines_after):
        return _last_loose_error(lines)
    return chosen.text


def rendered_lines(tail: str) -> list[str]:
    """Returns a log's lines as a terminal finally shows them: no colours, only the last state of each bar."""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", tail).split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    # The runner writes the last line.
    if shown and shown[-1].startswith("--- "):
        shown.pop()
    return shown


def _lines(tail: str) -> Iterator[_Line]:
    for text in rendered_lines(tail):
        rank = _RANK.match(text)
        if rank is not None:
            text = text[rank.end() :]
        number = next(filter(None, rank.groups()), "") if rank is not None else ""
        margin = _MARGIN.match(text)
        if margin is None:
            yield _Line(text, number)
        else:
            yield _Line(text[margin.end() :], number, len(margin[1]))


def _tracebacks(lines: Sequence[_Line]) -> list[_Traceback]:
    found: list[_Traceback] = []
    group: int | None = None
    for index, line in enumerate(lines):
        header = _HEADER.search(line.text)
        if header is None:
            continue
        if group is not None and line.depth > group:
            continue  # part of the group, reported with it
        group = None
        end = _error_index(lines, index, line)
        if end is None:
            continue
        text = _with_continuation(lines, end)
        if header[0].startswith("Exception Group"):
            group = line.depth
            text += _first_group_error(lines, end, line.depth)
        found.append(_Traceback(text, end, line.rank, _is_harmless(lines, index, found)))
    return found


def _error_index(lines: Sequence[_Line], header: int, header_line: _Line) -> int | None:
    """Returns the index of the error line of the traceback that begins at `header`; None if it has none."""
    base: int | None = None
    for index in range(header + 1, min(len(lines), header + 1 + _MAX_TRACEBACK_LINES)):
        line = lines[index]
        if line.rank != header_line.rank:
            continue  # another process's line in between
        if line.depth >= 0 > header_line.depth:
            continue  # a bar in the source text
        if line.depth != header_line.depth or _HEADER.search(line.text):
            return None
        text = line.text.lstrip(" ")
        indent = len(line.text) - len(text)
        if base is None and text.startswith('File "'):
            base = max(0, indent - 2)
        if text and indent <= (base or 0) and _ERROR.fullmatch(text):
            return index
    return None


def _with_continuation(lines: Sequence[_Line], index: int) -> str:
    """Returns the error's line, joined with a later line if its message begins there."""
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


def _first_group_error(lines: Sequence[_Line], index: int, depth: int) -> str:
    for line in lines[index + 1 : index + 1 + _MAX_TRACEBACK_LINES]:
        if line.depth < 0:
            break
        if line.depth > depth and ":" in line.text and not line.text.startswith(" "):
            if _HEADER.search(line.text):
                continue
            if _ERROR.fullmatch(line.text):
                return f": {line.text}"
    return ""


def _is_harmless(lines: Sequence[_Line], header: int, before: Sequence[_Traceback]) -> bool:
    above = [line.text.strip() for line in lines[max(0, header - 3) : header] if line.text.strip()]
    if not above:
        return False
    if above[-1].startswith(_CHAINED_HEADERS):
        return bool(before) and before[-1].is_harmless
    return above[-1].startswith(_HARMLESS_HEADERS)


def _final_traceback(tracebacks: Sequence[_Traceback], lines: Sequence[_Line]) -> _Traceback | None:
    """Returns the traceback that ended the program: the last one that does not only report another error."""
    serious = [one for one in tracebacks if not one.is_harmless] or list(tracebacks)
    if not serious or not _WRAPPER.fullmatch(serious[-1].text):
        return serious[-1] if serious else None
    cause = _root_cause(lines)
    own = [one for one in serious if not _WRAPPER.fullmatch(one.text)]
    of_rank = [one for one in own if one.rank and one.rank == cause.get("rank", "").partition(" ")[0]]
    if own:
        return (of_rank or own)[-1]
    last = serious[-1]
    if not cause:
        return last
    name = last.text.partition(":")[0].rpartition(".")[2]
    details = [cause.get("exitcode", "?"), cause.get("traceback", "")]
    details = [text for text in details if text and not text.startswith("To enable traceback")]
    return _Traceback(
        f"{name}: rank {cause.get('rank', '?')}: exit code {': '.join(details)}", last.index, "", False
    )


def _root_cause(lines: Sequence[_Line]) -> dict[str, str]:
    """Returns the fields of torchrun's summary of the first process that failed."""
    index = next((i for i in range(len(lines) - 1, -1, -1) if _ROOT_CAUSE.search(lines[i].text)), None)
    if index is None:
        return {}
    fields = (_SUMMARY_FIELD.fullmatch(line.text) for line in lines[index + 1 : index + 10])
    return {field[1]: field[2].strip() for field in fields if field is not None}


def _last_loose_error(lines: Sequence[_Line]) -> str | None:
    """Returns the last of the final 20 lines that has the form of an error; None if there is none."""
    for line in reversed(lines[-20:]):
        text = line.text
        if _LOOSE_ERROR.fullmatch(text.strip()) or _NON_PYTHON_ERROR.fullmatch(text):
            return text.strip()
    return None
