"""Composes a line of a jobs file from a script or a command and its attributes, for front ends.

Every line is checked with the parser of jobs files before it is returned.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import (
    ATTRIBUTES,
    NAMED,
    Attribute,
    check_conflicts,
    format_attribute,
    is_unset,
    key_of,
    parse_item,
    unknown_attribute,
)
from gpu_scheduler.core.jobsfile.job_line import (
    LineResult,
    Malformed,
    ParsedJob,
    check_cuda_option,
    parse_line,
    quote_field,
)
from gpu_scheduler.core.jobsfile.shell_syntax import check_effect
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import COMPARED_ATTRIBUTES, JobSpec
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


def format_change(name: str, value: Any) -> str:
    """Formats the new value of a field of JobSpec as `parse_changes` accepts it: "vram=18G", "vram="."""
    return f"{key_of(name)}=" if is_unset(value) else format_attribute(name, value)
