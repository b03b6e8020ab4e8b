"""Composes a line of a jobs file from a script or a command and its attributes, for front ends.

Every line is checked with the parser of jobs files before it is returned.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpu_scheduler.core.jobsfile.job_line import LineResult, Malformed, ParsedJob, format_csv_line, parse_line

#: Precedes a command that would be parsed as something else: `[ -f x ] && …`, `7,a.py,b`.
_NO_OP_PREFIX = "true && "


def format_script_line(
    items: Sequence[str],
    script: str,
    conda: str | None,
    args: str,
    priority: int | None,
    allowed: tuple[int, ...] | None,
) -> str:
    """Returns the CSV line of a script. items: its other attributes as in a block: "vram=18G", "hold".

    script: absolute path; args: its arguments as one text, quoted as for a shell. Raises ValueError for
    values that no line can express.
    """
    line = _format_block(items) + format_csv_line(script, conda, args, priority, allowed)
    _raise_if_malformed(_parse_back(line))
    return line


def format_command_line(items: Sequence[str], words: Sequence[str]) -> str:
    """Returns the line of a command. words: its command line; a single word is shell text and kept as it is.

    Raises ValueError for values that no line can express.
    """
    text = words[0].strip() if len(words) == 1 else shlex.join(words)
    if not text or text.startswith("#"):
        raise ValueError(f"{text!r} runs nothing")
    first = _parse_back(f"{_format_block(items)}{text}")
    if isinstance(first, ParsedJob) and first.spec.kind == "command":
        return f"{_format_block(items)}{text}"
    line = f"{_format_block(items)}{_NO_OP_PREFIX}{text}"
    second = _parse_back(line)
    _raise_if_malformed(first if isinstance(second, Malformed) else second)
    return line


def _format_block(items: Sequence[str]) -> str:
    return f"[{' '.join(map(shlex.quote, items))}] " if items else ""


def _parse_back(line: str) -> LineResult:
    return parse_line(line, "/", "/", None)


def _raise_if_malformed(read: LineResult) -> None:
    if isinstance(read, Malformed):
        raise ValueError(read.reason)
