"""Reads the options of Slurm in the `#SBATCH` lines of a script: those with an equal here, and others."""

from __future__ import annotations

import re
import shlex

from gpu_scheduler.core.jobsfile.attributes import parse_item
from gpu_scheduler.core.model.units import format_seconds

_MARK = "#SBATCH"
_OPTION = re.compile(r"(--[^\s=]+|-\w)[ \t=]*([^-\s]\S*)?")
_COMMENT_OR_QUOTE = re.compile(r"[ \t]#.*|[\"']")
_LONG_NAMES = {"-J": "--job-name", "-t": "--time", "-G": "--gpus", "-a": "--array"}


def sbatch_options(script: str) -> tuple[dict[str, str], list[str], str]:
    """Returns the attributes that equal options of a script, the other options, and the indices of --array.

    The indices are words of a shell. As in Slurm, options after the first command do not count.
    """
    attributes, others, indices = dict[str, str](), list[str](), ""
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        text = line.removeprefix(_MARK) if line.startswith(_MARK) else ""
        for option in _OPTION.finditer(_COMMENT_OR_QUOTE.sub("", text)):
            name, value = _LONG_NAMES.get(option[1], option[1]), option[2] or ""
            if name == "--array":
                indices = " ".join(map(_shell_indices, value.partition("%")[0].split(",")))
                continue
            try:
                key, text = _attribute(name, value)
                parse_item(text, key, text, None)
                attributes[key] = text
            except ValueError:
                others.append(option[0].strip())
    return attributes, others, indices


def _attribute(name: str, value: str) -> tuple[str, str]:
    """Returns the attribute that equals an option of Slurm, and its value. Raises ValueError if none does."""
    if name == "--job-name":
        return "name", value
    if name in ("--gres", "--gpus", "--gpus-per-node"):
        wanted = [one for one in value.split(",") if name != "--gres" or one.startswith("gpu")]
        if not wanted:
            raise ValueError(value)  # it says nothing about GPUs
        counts = [re.search(r"(?:^|:)([0-9]+)$", one.partition("(")[0]) for one in wanted]
        return "gpus", str(sum(int(count[1]) if count else 1 for count in counts))
    if name != "--time":
        raise ValueError(name)
    days, dash, time = value.rpartition("-")
    parts = [int(part) for part in time.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)  # the first number is minutes, not hours
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    return "timeout", format_seconds(86400 * int(days or 0) + seconds)


def _shell_indices(text: str) -> str:
    """Returns the indices in `7`, `0-9` or `0-9:3` as words of a shell."""
    span = re.fullmatch(r"([0-9]+)-([0-9]+)(?::([0-9]+))?", text)
    return f"$(seq {span[1]} {span[3] or 1} {span[2]})" if span else shlex.quote(text)
