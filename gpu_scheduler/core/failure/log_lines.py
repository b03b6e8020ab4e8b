"""Splits the end of a log into lines, and separates the prefixes that launchers add to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpu_scheduler.core.text.escapes import ESCAPE

#: Prefixes with which torch, torchrun, accelerate, MPI and Ray mark the lines of each process, and the prefix
#: of vLLM's log lines, which may follow them.
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|\[\d+,(\d+)\]<std(?:err|out)>: ?|stderr: "
    r"|\((?:\w+ )?(?:rank=\d+ )?pid=(\d+)[^()]{0,120}\) ?)?"
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?)?"
)
#: The left margin of a printed exception group.
_MARGIN = re.compile(r"( +)(?:\| ?|\+(?: |$)|\+[-+]{3,}.*)")


class LogLine(NamedTuple):
    """A line without its prefix and margin.

    rank: the rank or pid of the process that wrote the line; "" if unknown. depth: the number of blanks
    before the margin; -1 if there is no margin.
    """

    text: str
    rank: str = ""
    depth: int = -1


def rendered_lines(tail: str) -> list[str]:
    """Returns a log's lines without colours, and with only the last state of each progress bar."""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", tail).split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    # This line comes from the runner, not from the job.
    if shown and shown[-1].startswith("--- "):
        shown.pop()
    return shown


def log_lines(tail: str) -> Iterator[LogLine]:
    """Yields the lines of a log."""
    for text in rendered_lines(tail):
        prefix = _PREFIX.match(text)
        assert prefix is not None  # the pattern always matches, because all its parts are optional
        rank = next(filter(None, prefix.groups()), "")
        text = text[prefix.end() :]
        margin = _MARGIN.match(text)
        yield LogLine(text, rank) if margin is None else LogLine(text[margin.end() :], rank, len(margin[1]))
