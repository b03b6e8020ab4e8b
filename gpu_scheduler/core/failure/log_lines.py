"""Splits the end of a log into the lines that its processes wrote, without the marks that launchers add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpu_scheduler.core.text.escapes import ESCAPE

#: Prefixes of the lines of one process: torch, torchrun, accelerate, MPI, Ray; then the prefix of vLLM's log.
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|rank(\d+): ?|\[\d+,(\d+)\]<std(?:err|out)>: ?|stderr: "
    r"|\((?:\w+ )?(?:rank=\d+ )?pid=(\d+)[^()]{0,120}\) ?)?"
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?)?"
)
#: The left margin of a printed exception group.
_MARGIN = re.compile(r"( +)(?:\| ?|\+(?: |$)|\+[-+]{3,}.*)")


class LogLine(NamedTuple):
    """A line without its prefix and margin.

    rank: rank or pid of the process that wrote it, "" = unknown; depth: blanks before the margin, -1 = none.
    """

    text: str
    rank: str = ""
    depth: int = -1


def rendered_lines(tail: str) -> list[str]:
    """Returns a log's lines as a terminal finally shows them: no colours, only the last state of each bar."""
    shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", tail).split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    # The runner writes the last line.
    if shown and shown[-1].startswith("--- "):
        shown.pop()
    return shown


def log_lines(tail: str) -> Iterator[LogLine]:
    """Yields the lines of a log."""
    for text in rendered_lines(tail):
        prefix = _PREFIX.match(text)
        assert prefix is not None  # every part of the pattern is optional
        rank = next(filter(None, prefix.groups()), "")
        text = text[prefix.end() :]
        margin = _MARGIN.match(text)
        yield LogLine(text, rank) if margin is None else LogLine(text[margin.end() :], rank, len(margin[1]))
