"""Detects a torn append: a second line that was appended to a last line without a line ending.

Such a last line has grown since it was read. Whether it was edited or another program appended a line to it
is decided from the text alone, so the answer is wrong where one looks like the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpu_scheduler.core.jobsfile.attributes import FLAGS
from gpu_scheduler.core.jobsfile.csv_line import looks_like_csv
from gpu_scheduler.core.jobsfile.job_line import Malformed
from gpu_scheduler.core.jobsfile.reading import Line

REASON = "a second line was appended to a line that had no line ending"
TORN_APPEND = Malformed(REASON, "two lines; or, if it is a single one, the same line with [] in front of it")

_PROGRAMS = re.compile(
    r"(?:python|pypy|bash|sh|zsh|env|conda|mamba|micromamba|torchrun|accelerate|deepspeed|uv|uvx|poetry|pipenv"
    r"|make|nohup|time|timeout|nice|cd|echo|printf|sleep|export|source|srun|mpirun|mpiexec|jupyter|papermill"
    r"|Rscript|julia|perl|ruby|node|docker|podman|apptainer|singularity|wget|curl|rsync|cp|mv|rm|mkdir|git"
    r"|for|if|while|until|test|true|false)[0-9.]*"
)
_ASSIGNMENTS = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*=\S*[ \t]+)*")
_BLOCK = re.compile(r"\[(?P<items>[^\]]*)\][ \t]+\S")
_SECOND_IS_PATH = re.compile(r'[+-]?[0-9]*[ \t]*,[ \t]*"?[^,"]*(?:\.py|/)')
_SCRIPT = re.compile(r"(?:\.|~)/\S+")


def first_word(command: str) -> str:
    """Returns the first word of a command after its variable assignments."""
    words = command[_ASSIGNMENTS.match(command).end() :].split(None, 1)  # type: ignore[union-attr]
    return words[0] if words else ""


def contains_second_line(before: Line, now: Line, programs: Collection[str]) -> bool:
    """Returns whether `now`, which replaced `before`, is that line followed by the beginning of another.

    programs: words that begin commands elsewhere in the file.
    """
    grown = now.raw.rstrip("\r\n")
    old = before.raw.rstrip("\r\n")
    return (
        not before.has_newline
        and not before.malformed
        and grown != old
        and grown.startswith(old)
        and starts_a_line(grown[len(old) :], {*programs, first_word(before.text)})
    )


def starts_a_line(tail: str, programs: Collection[str]) -> bool:
    """Returns whether text that was joined to a line looks like the beginning of another line."""
    if not tail or tail[0] in " \t#":
        return False
    tail = tail.removeprefix("\ufeff")
    block = _BLOCK.match(tail)
    if block is not None:
        return all("=" in item or item in FLAGS for item in block["items"].split())
    if looks_like_csv(tail) and _SECOND_IS_PATH.match(tail):
        return True
    word = first_word(tail)
    assigned = bool(word) and not tail.startswith(word)
    return assigned or word in programs or bool(_PROGRAMS.fullmatch(word) or _SCRIPT.fullmatch(word))
