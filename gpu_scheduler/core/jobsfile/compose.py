"""Composes lines of a jobs file from a script or a command and its attributes, for front ends.

The attributes may come from the #SBATCH lines of the script, and a grid gives a line for each combination of
values.

Every line is checked with the parser of jobs files before it is returned.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.core.jobsfile.attributes import (
    ATTRIBUTES,
    NAMED,
    Attribute,
    check_conflicts,
    key_of,
    parse_item,
    unknown_attribute,
)
from gpu_scheduler.core.jobsfile.job_line import (
    LineResult,
    Malformed,
    ParsedJob,
    check_cuda_option,
    check_effect,
    parse_line,
    quote_field,
)
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, MAX_NAME_LENGTH, JobSpec
from gpu_scheduler.core.model.values import format_seconds
from gpu_scheduler.core.text.parsing import BLANK

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


# Parses changes to the attributes of a job, such as `vram=18G`, `vram=` and `exclusive`, and checks them.


#: The attributes that can be changed.
CHANGEABLE = tuple(
    key for key, row in ATTRIBUTES.items() if row.field in COMPARED_ATTRIBUTES and row.command is None
)
_DEFAULTS = JobSpec("command", "", "/")


def parse_changes(items: Iterable[str], known_gpus: frozenset[int] | None) -> dict[str, Any]:
    """Returns the new values of attributes, by the names of the JobSpec fields. `KEY=` removes an attribute.

    known_gpus: the indices of the existing GPUs; None to accept any index. Raises ValueError with the mistake
    and its remedy.
    """
    changes: dict[str, Any] = {}
    for item in items:
        key, given, value = item.partition("=")
        row = None if key == "command" else _changeable(key)
        field = "command" if row is None else row.field
        if field in changes:
            raise ValueError(f"attribute {key_of(field)} is given twice; give it once")
        if row is None:
            if not value:
                raise ValueError("a command is missing; write it in quotes, as in command='python train.py'")
            changes[field] = value
        elif given and not value:
            changes[field] = getattr(_DEFAULTS, field)
        elif given or row.form is None:
            changes[field] = parse_item(item, key, value if given else None, known_gpus)[1]
        else:
            raise ValueError(f"attribute {key} has no value; write {key}=…, or {key}= to remove it")
    return changes


def _changeable(key: str) -> Attribute:
    row = NAMED.get(key)
    if row is not None and row.command is not None:
        raise ValueError(f"{key} is not set as an attribute; use {row.command}")
    if row is not None and row.key in CHANGEABLE:
        return row
    if row is not None or key.startswith("env:"):
        raise ValueError(
            f"{key} belongs to what the job runs and cannot be changed; cancel the job and submit it again"
        )
    unclear = f"attribute {key!r} cannot be changed; these can: {' '.join(CHANGEABLE)}"
    raise ValueError(unknown_attribute(key, None) or unclear)


def check_changes(spec: JobSpec, changes: Mapping[str, Any]) -> None:
    """Raises ValueError for changes that contradict each other or other attributes of the job."""
    changed = replace(spec, **changes)
    check_conflicts({**changed.attributes, "conda": spec.conda, "venv": spec.venv})
    if spec.torchrun is not None and (changed.gpus is not None or changed.share is not None):
        raise ValueError("the job runs torchrun on a fixed number of GPUs; gpus and share cannot be set")
    check_cuda_option(changed)


# Expands a sweep, such as `--grid lr=0.1,0.01 --grid seed=1..3`, into a job for each combination of values.
#
# `{lr}` in a text stands for the value of the key lr. `${lr}` and braces that do not enclose a single word,
# such as those of JSON, are ordinary text, and `{{word}}` stands for the text {word}.

#: Maximum number of jobs of one grid.
MAX_JOBS = 10_000

_KEY = "[A-Za-z_][A-Za-z0-9_-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<text>{_KEY})\}}\}}|(?<!\$)\{{(?P<key>{_KEY})\}}")
_VALUE = r""""[^"]*"|'[^']*'|[^,"']+"""
_INTEGERS = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")


def combinations(items: Iterable[str], *, is_zip: bool = False) -> list[dict[str, str]]:
    """Returns the combinations of the values of each key. The first key changes most slowly.

    items: as in `lr=0.1,0.01`, `seed=1..3` and `text="a,b",c`; is_zip: whether to combine the first values of
    all keys, then the second ones, and so on. Raises ValueError for an item that is not valid.
    """
    grid: dict[str, list[str]] = {}
    for item in items:
        key, _, text = item.partition("=")
        if not re.fullmatch(_KEY, key) or not re.fullmatch(f"(?:{_VALUE})(?:,(?:{_VALUE}))*", text):
            raise ValueError(f'{item!r} is not KEY=VALUES, such as lr=0.1,0.01 or seed=1..3 or x="a,b",c')
        values = [value for one in re.findall(_VALUE, text) for value in _expanded(one)]
        if key in grid or len(set(values)) < len(values):
            raise ValueError(f"{item}: {key if key in grid else 'a value'} is given twice; give it once")
        grid[key] = values
    sizes = [len(values) for values in grid.values()]
    if not grid:
        raise ValueError("--zip combines the values of several --grid; there is none")
    if is_zip and len(set(sizes)) > 1:
        counts = ", ".join(f"{key} has {len(values):,}" for key, values in grid.items())
        raise ValueError(f"--zip needs the same number of values for each key, but {counts}")
    if (count := sizes[0] if is_zip else prod(sizes)) > MAX_JOBS:
        raise ValueError(f"there are {count:,} combinations; at most {MAX_JOBS:,} are possible")
    rows = list(zip(*grid.values(), strict=True)) if is_zip else product(*grid.values())
    return [dict(zip(grid, row, strict=True)) for row in rows]


def _expanded(value: str) -> Sequence[str]:
    """Returns the numbers of a range such as 1..3, or the value without its quotes."""
    found = _INTEGERS.fullmatch(value)
    if found is None and ".." in value and value[-1].isdigit() and not value.strip("-.:0123456789"):
        raise ValueError(f"{value} is not a range such as 1..3; list the values, as in 0.1,0.5 or 0,2,4")
    if found is None:
        return [value[1:-1] if value[0] in "\"'" else value]
    first, last = int(found[1]), int(found[2])
    if abs(last - first) >= MAX_JOBS:
        raise ValueError(f"{value} has more than {MAX_JOBS:,} values")
    step = 1 if first <= last else -1
    return [*map(str, range(first, last + step, step))]


def filled(work: Mapping[str, Any], grid: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Returns these values with the values of each combination in the place of their placeholders.

    work: texts, and lists and mappings of texts. Raises ValueError if a placeholder is no key of the grid, or
    if a key has no placeholder.
    """
    # In JSON, a brace that does not belong to a text is never followed by a word.
    text, keys = json.dumps(work), list(grid[0])
    used = {found["key"] for found in _PLACEHOLDER.finditer(text)} - {None}
    for key in sorted(used.difference(keys)):
        raise ValueError(
            f"{{{key}}} is none of the keys {', '.join(keys)}; give its values with --grid, or write"
            f" {{{{{key}}}}} for the text itself"
        )
    for key in keys:
        if key not in used:
            raise ValueError(f"{key} is not used; write {{{key}}} where its values belong")
    return [json.loads(_PLACEHOLDER.sub(lambda found: _value(found, one), text)) for one in grid]  # noqa: B023


def _value(found: re.Match[str], combination: Mapping[str, str]) -> str:
    return f"{{{found['text']}}}" if found["text"] else json.dumps(combination[found["key"]])[1:-1]


def job_names(base: str, grid: Collection[Mapping[str, str]]) -> list[str]:
    """Returns the name of each job, such as train/lr=0.1/seed=2.

    If a name would be too long, or that of two jobs, the jobs are numbered instead, as in train/1.
    """
    names = ["/".join([base, *(f"{key}={safe(value)}" for key, value in one.items())]) for one in grid]
    if len(set(names)) < len(names) or max(map(len, names)) > MAX_NAME_LENGTH:
        return [f"{base}/{number}" for number in range(1, len(names) + 1)]
    return names


def safe(text: str) -> str:
    """Returns a text in which every character that no part of a name may contain is replaced by -."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "-", text)


# Reads the options of Slurm in the `#SBATCH` lines of a script: those with an equal here, and others.

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
