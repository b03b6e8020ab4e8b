"""Composes a line of a jobs file from a script or a command and its attributes, for front ends.

Every line is checked with the parser of jobs files before it is returned.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from gpu_scheduler.core.jobsfile.attributes import parse_conda
from gpu_scheduler.core.jobsfile.csv_line import quote_field
from gpu_scheduler.core.jobsfile.job_line import LineResult, Malformed, ParsedJob, parse_line
from gpu_scheduler.core.jobsfile.shell_syntax import check_effect
from gpu_scheduler.core.model.gpu_list import format_gpu_list
from gpu_scheduler.core.text.quoting import BLANK

#: Put before a command that would otherwise be parsed as something else, such as `[ -f x ] && …` or
#: `7,a.py,b`.
_NO_OP_PREFIX = "true && "


def format_script_line(
    script: str,
    conda: str | None = None,
    args: str = "",
    priority: int | None = 0,
    allowed: tuple[int, ...] | None = None,
    items: Sequence[str] = (),
) -> str:
    """Returns the CSV line that runs a script.

    script: absolute path; args: the script's arguments as one text, quoted as for a shell; items: the line's
    other attributes, as in a block ("vram=18G", "hold"). Raises ValueError for values that a line cannot
    contain (a line break, an unbalanced quote, an invalid environment name).
    """
    for name, value in (("script", script), ("conda environment", conda or ""), ("arguments", args)):
        if any(bad in value for bad in "\n\r\0"):
            raise ValueError(
                f"{name} {value!r} contains a line break or NUL, which no line of a jobs file may contain"
            )
    if conda:
        parse_conda(conda)
    gpus = format_gpu_list(allowed)
    bare = args.strip(BLANK)
    # A blank after a final backslash belongs to an argument and must be kept.
    arguments = quote_field(args.lstrip(BLANK) if bare.endswith("\\") else bare)
    if "," in gpus and arguments and not arguments.startswith('"'):
        arguments = f'"{arguments}"'
    number = "" if priority is None else str(priority)
    fields = (number, quote_field(script), quote_field(conda or ""), arguments, gpus)
    line = _format_block(items) + ",".join(fields)
    read = _parse_back(line)
    _raise_if_malformed(read)
    if not isinstance(read, ParsedJob) or read.spec.script != posixpath.normpath(script):
        # After an escaped quote, a # that follows a blank would begin a comment in the middle of the name.
        raise ValueError(
            f"script {script!r} cannot be written to a jobs file: the # in its name would begin a comment;"
            " rename it"
        )
    return line


def format_command_line(items: Sequence[str], words: Sequence[str]) -> str:
    """Returns the line that runs a command.

    words: the words of the command; a single word is shell text and is kept unchanged.
    Raises ValueError for values that a line cannot contain.
    """
    text = words[0].strip() if len(words) == 1 else shlex.join(words)
    if not text or text.startswith("#"):
        raise ValueError(f"{text!r} runs nothing")
    check_effect(text)
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
