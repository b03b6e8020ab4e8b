"""The error that ended a program, found in the end of its log.

Above all a Python traceback: chained, of a group, of one rank among several, behind colours and progress
bars. Of what is found only one line is told. It refuses to guess: a log without an error gives None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.escapes import ESCAPE

#: Lines of one traceback that are looked through for its end.
_LONGEST = 400
#: Words that begin what Python prints about errors that ended nothing.
_HARMLESS = ("Exception ignored in", "Error in atexit", "--- Logging error", "Exception in thread")
_CHAINED = ("The above exception was", "During handling of the above")

#: What launchers put before each line of a process: torch, torchrun, accelerate, ray.
_RANK = re.compile(r"\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|stderr: |\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ")
_MARGIN = re.compile(r"( +)(?:[|+](?: |$)|\+[-+]{3,}.*)")
_HEADER = re.compile(r"(?:Exception Group |Original )?Traceback \(most recent call last\):")
_NAME = r"[^\W\d][\w.]*(?:\.<locals>[\w.]*)*"
_ERROR = re.compile(rf"{_NAME}(?::(?: .*)?)?")
_LOOSE = re.compile(r"(?:[^\W\d][\w.]*\.)?\w*(?:Error|Exception)(?:: .*)?")
#: Errors of a program that only says that another one failed.
_WRAPPER = re.compile(r"(?:.*\.)?(?:ChildFailedError|CalledProcessError)\b.*")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_FIELD = re.compile(r"\s+(rank|exitcode|traceback)\s*: (.*)")
#: What other programs say last: the shell, argparse and its kind, Python of its script, an aborting C++.
_OTHERS = re.compile(
    r".*: (?:command not found|No such file or directory|Permission denied|Is a directory|cannot execute.*)"
    r"|.*: Exec format error|\S+: error: .*|.*can't open file .*|\s+what\(\):  .*|.*Fatal Python error: .*"
)


@dataclass(frozen=True)
class _Line:
    """A line without its rank and its margin; depth: blanks before the bar of a group, -1 without one."""

    text: str
    rank: str = ""
    depth: int = -1


@dataclass(frozen=True)
class _Found:
    """The end of one traceback."""

    text: str
    at: int
    rank: str
    harmless: bool


def last_error(tail: str, near: int | None = None) -> str | None:
    """The line that names the error; None if there is none.

    near: an error that is followed by more than so many lines is not the one that ended the program.
    """
    lines = list(_lines(tail))
    found = _tracebacks(lines)
    chosen = _chosen(found, lines)
    if chosen is None or (near is not None and len(lines) - chosen.at > near):
        return _other(lines)
    return chosen.text


def text_lines(tail: str) -> list[str]:
    """The lines of a log as a terminal would show them in the end: no colours, the last state of each bar."""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", tail).split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    # The runner's own last word.
    if shown and shown[-1].startswith("--- "):
        shown.pop()
    return shown


def _lines(tail: str) -> Iterator[_Line]:
    for text in text_lines(tail):
        rank = _RANK.match(text)
        if rank is not None:
            text = text[rank.end() :]
        number = next(filter(None, rank.groups()), "") if rank is not None else ""
        margin = _MARGIN.match(text)
        if margin is None:
            yield _Line(text, number)
        else:
            yield _Line(text[margin.end() :], number, len(margin[1]))


def _tracebacks(lines: Sequence[_Line]) -> list[_Found]:
    found: list[_Found] = []
    group: int | None = None
    for at, line in enumerate(lines):
        header = _HEADER.search(line.text)
        if header is None:
            continue
        if group is not None and line.depth > group:
            continue  # a part of the group, told with it
        group = None
        end = _end(lines, at, line)
        if end is None:
            continue
        text = _with_more(lines, end)
        if header[0].startswith("Exception Group"):
            group = line.depth
            text += _first_of_group(lines, end, line.depth)
        found.append(_Found(text, end, line.rank, _is_harmless(lines, at, found)))
    return found


def _end(lines: Sequence[_Line], header: int, like: _Line) -> int | None:
    """Where the error of the traceback stands that begins at `header`."""
    base: int | None = None
    for at in range(header + 1, min(len(lines), header + 1 + _LONGEST)):
        line = lines[at]
        if line.rank != like.rank:
            continue  # another process wrote in between
        if line.depth >= 0 > like.depth:
            continue  # a bar in the source text
        if line.depth != like.depth or _HEADER.search(line.text):
            return None
        text = line.text.lstrip(" ")
        indent = len(line.text) - len(text)
        if base is None and text.startswith('File "'):
            base = max(0, indent - 2)
        if text and indent <= (base or 0) and _ERROR.fullmatch(text):
            return at
    return None


def _with_more(lines: Sequence[_Line], at: int) -> str:
    """The error's line; where its message begins on a later line, that one too."""
    text = lines[at].text.strip()
    if not text.endswith(":"):
        return text
    for line in lines[at + 1 : at + 4]:
        more = line.text.strip()
        if _HEADER.search(more):
            break
        if re.search(r"\w", more):
            return f"{text} {more}"
    return text.rstrip(":")


def _first_of_group(lines: Sequence[_Line], at: int, depth: int) -> str:
    for line in lines[at + 1 : at + 1 + _LONGEST]:
        if line.depth < 0:
            break
        if line.depth > depth and ":" in line.text and not line.text.startswith(" "):
            if _HEADER.search(line.text):
                continue
            if _ERROR.fullmatch(line.text):
                return f": {line.text}"
    return ""


def _is_harmless(lines: Sequence[_Line], header: int, before: Sequence[_Found]) -> bool:
    above = [line.text.strip() for line in lines[max(0, header - 3) : header] if line.text.strip()]
    if not above:
        return False
    if above[-1].startswith(_CHAINED):
        return bool(before) and before[-1].harmless
    return above[-1].startswith(_HARMLESS)


def _chosen(found: Sequence[_Found], lines: Sequence[_Line]) -> _Found | None:
    """The traceback that tells why the program ended: the last, but for those that only report another."""
    serious = [one for one in found if not one.harmless] or list(found)
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
    told = [cause.get("exitcode", "?"), cause.get("traceback", "")]
    told = [text for text in told if text and not text.startswith("To enable traceback")]
    return _Found(f"{name}: rank {cause.get('rank', '?')}: exit code {': '.join(told)}", last.at, "", False)


def _root_cause(lines: Sequence[_Line]) -> dict[str, str]:
    """The fields of torchrun's summary about the first process that failed."""
    at = next((i for i in range(len(lines) - 1, -1, -1) if _ROOT_CAUSE.search(lines[i].text)), None)
    if at is None:
        return {}
    fields = (_FIELD.fullmatch(line.text) for line in lines[at + 1 : at + 10])
    return {field[1]: field[2].strip() for field in fields if field is not None}


def _other(lines: Sequence[_Line]) -> str | None:
    """The last of the last lines that has the form of an error."""
    for line in reversed(lines[-20:]):
        text = line.text
        if _LOOSE.fullmatch(text.strip()) or _OTHERS.fullmatch(text):
            return text.strip()
    return None
