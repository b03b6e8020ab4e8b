"""Reads the options of Slurm in the `#SBATCH` lines of a script: those with an equal here, and others."""

from __future__ import annotations

import re

from gpu_scheduler.core.jobsfile.attributes import parse_item
from gpu_scheduler.core.model.units import format_seconds

_MARK = "#SBATCH"
#: The variable with the index of a job of an array.
ARRAY_INDEX = "SLURM_ARRAY_TASK_ID"
_OPTION = re.compile(r"(--[^\s=]+|-\w)[ \t=]*([^-\s]\S*)?")
_COMMENT_OR_QUOTE = re.compile(r"[ \t]#.*|[\"']")
_LONG_NAMES = {"-J": "--job-name", "-t": "--time", "-G": "--gpus", "-a": "--array"}


def sbatch_options(script: str) -> tuple[dict[str, str], list[str], list[str]]:
    """Returns the attributes that equal options of a script, the other options, and the grid of --array.

    The grid is the words of `submit` that give each job its index. As in Slurm, options after the first
    command do not count.
    """
    attributes, others, grid = dict[str, str](), list[str](), list[str]()
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        text = line.removeprefix(_MARK) if line.startswith(_MARK) else ""
        for option in _OPTION.finditer(_COMMENT_OR_QUOTE.sub("", text)):
            name, value = _LONG_NAMES.get(option[1], option[1]), option[2] or ""
            if name == "--array":
                indices, _, limit = value.partition("%")
                grid = ["--grid", f"i={','.join(map(_grid_values, indices.split(',')))}"]
                grid += [*(["--max-running", limit] if limit else []), "--env", f"{ARRAY_INDEX}={{i}}"]
                continue
            try:
                key, text = _attribute(name, value)
                parse_item(text, key, text, None)
                attributes[key] = text
            except ValueError:
                others.append(option[0].strip())
    return attributes, others, grid


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


def _grid_values(text: str) -> str:
    """Returns the indices in `7`, `0-9` or `0-9:3` as values of --grid."""
    span = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})(?::([1-9][0-9]*))?", text)
    if span is None or span[3] is None:
        return text if span is None else f"{span[1]}..{span[2]}"
    return ",".join(map(str, range(int(span[1]), int(span[2]) + 1, int(span[3]))))
