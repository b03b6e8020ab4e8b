"""Detects a torn append: a second line that was appended to a last line without a line ending.

Such a last line has grown since it was read: either somebody has edited it, or a program has appended another
line to it. Only the text can show which of the two happened, so the answer is wrong if one case looks like
the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpu_scheduler.core.jobsfile.attributes import FLAGS
from gpu_scheduler.core.jobsfile.csv_line import looks_like_csv
from gpu_scheduler.core.jobsfile.job_line import Malformed
from gpu_scheduler.core.jobsfile.reading import Line, Reading, line_from_result

REASON = "a second line was appended to a line that had no line ending"
_TORN_APPEND = Malformed(REASON, "two separate lines or, if it is meant as a single line, [] in front of it")

_PROGRAMS = re.compile(
    r"(?:python|pypy|bash|sh|zsh|env|conda|mamba|micromamba|torchrun|accelerate|deepspeed|uv|uvx|poetry|pipenv"
    r"|make|nohup|time|timeout|nice|cd|echo|printf|sleep|export|source|srun|mpirun|mpiexec|jupyter|papermill"
    r"|Rscript|julia|perl|ruby|node|docker|podman|apptainer|singularity|wget|curl|rsync|cp|mv|rm|mkdir|git"
    r"|for|if|while|until|test|true|false)[0-9.]*"
)
_ASSIGNMENTS = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*=\S*[ \t]+)*")
_BLOCK = re.compile(r"\[(?P<items>[^\]]*)\][ \t]+\S")
_SECOND_IS_PATH = re.compile(r'[+-]?[0-9]*[ \t]*,(?:[ \t]*")?[^,"]*?(?:\.py|/)')
_SCRIPT = re.compile(r"(?:\.|~)/\S+")


def mark_torn_appends(previous: Reading, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Marks a line as malformed if it has grown since it was read and contains a second line."""
    known = {line.raw.rstrip("\r\n") for line in previous if line.problem == REASON}
    open_line = next((line for line in previous if not line.has_newline and not line.malformed), None)
    if open_line is not None and any(line.key == open_line.key for line in lines):
        open_line = None
    if open_line is None and not known:
        return lines
    programs = {_first_word(line.text) for line in previous if line.kind == "command"}
    return tuple(
        line_from_result(line.number, line.raw, _TORN_APPEND)
        if line.raw.rstrip("\r\n") in known
        or (open_line is not None and _contains_second_line(open_line, line, programs))
        else line
        for line in lines
    )


def _first_word(command: str) -> str:
    """Returns the first word of a command after its variable assignments."""
    words = command[_ASSIGNMENTS.match(command).end() :].split(None, 1)  # type: ignore[union-attr]
    return words[0] if words else ""


def _contains_second_line(before: Line, now: Line, programs: Collection[str]) -> bool:
    """Returns whether `now` consists of `before`, which had no line ending, and the start of another line.

    programs: words that begin commands elsewhere in the file.
    """
    grown = now.raw.rstrip("\r\n")
    old = before.raw.rstrip("\r\n")
    return grown.startswith(old) and starts_a_line(grown[len(old) :], {*programs, _first_word(before.text)})


def starts_a_line(tail: str, programs: Collection[str]) -> bool:
    """Returns whether text that was appended to a line looks like the beginning of another line."""
    if not tail or tail[0] in " \t#":
        return False
    tail = tail.removeprefix("\ufeff")
    block = _BLOCK.match(tail)
    if block is not None:
        return all("=" in item or item in FLAGS for item in block["items"].split())
    if looks_like_csv(tail) and _SECOND_IS_PATH.match(tail):
        return True
    word = _first_word(tail)
    assigned = bool(word) and not tail.startswith(word)
    return assigned or word in programs or bool(_PROGRAMS.fullmatch(word) or _SCRIPT.fullmatch(word))
