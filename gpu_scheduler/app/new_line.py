"""Composes the line of a new job from option values, checks it, and finds reasons why its job may not run.

`add` appends the line to a jobs file, and `submit` inserts its job into the store.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from gpu_scheduler.app.line_note import LineNote
from gpu_scheduler.app.preview import PreviewContext, preview
from gpu_scheduler.app.recorded_setting import RecordedSetting
from gpu_scheduler.core.jobsfile import grid
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.errors import UsageError
from gpu_scheduler.health.doctor.conda import conda_sh_of, known_environments
from gpu_scheduler.intake.bash_check import job_shell
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.intake.text_parser import parse_job_line

#: Maximum number of characters of the jobs of a grid together.
_MAX_TEXT = 64 * 1024 * 1024
#: The value of each attribute; a flag has the value True, and `env` has a list of variables.
AttributeValues = Mapping[str, str | bool | Sequence[str]]


@dataclass(frozen=True)
class NewWork:
    """The script with its arguments, or the words of a command, of a new job, and its attributes."""

    script: str | None = None
    arguments: str | tuple[str, ...] = ()
    command: Sequence[str] = ()
    attributes: AttributeValues = field(default_factory=dict)


_New = TypeVar("_New", bound=NewWork)


def expand_grid(new: _New, items: Sequence[str], *, is_zip: bool) -> list[_New]:
    """Returns the job of each combination of a grid (`core.jobsfile.grid`); this job itself without a grid.

    The values of a combination follow the name that was given, or that of the program. Raises UsageError.
    """
    if not items and not is_zip:
        return [new]
    try:
        found = grid.combinations(items, is_zip=is_zip)
        values = {**vars(new), "attributes": {k: v for k, v in new.attributes.items() if k != "name"}}
        if len(found) * len(str(values)) > _MAX_TEXT:
            raise ValueError(f"the {len(found):,} jobs are too long; put long texts into a script")
        jobs = [replace(new, **one) for one in grid.filled(values, found)]
    except ValueError as error:
        raise UsageError(f"--grid: {error}") from None
    text = new.command[0] if len(new.command) == 1 else shlex.join(new.command)
    program = new.script or JobSpec("command", text, "/", command=text).program
    base = str(new.attributes.get("name") or grid.safe(re.sub(r"\.(?:py|sh)$", "", Path(program).name)))
    names = zip(jobs, grid.job_names(base, found), strict=True)
    return [replace(job, attributes={**job.attributes, "name": name}) for job, name in names]


def attribute_items(values: AttributeValues, folder: str = "") -> list[str]:
    """Returns the items of the attribute block in a fixed order, with absolute paths.

    folder: that of relative paths; "" for the current one.
    """
    items: list[str] = []
    for key in ATTRIBUTE_HELP:
        value = values.get(key)
        if value is True:
            items.append(key)
        elif isinstance(value, str):
            if value:
                if key in ("venv", "cwd"):
                    value = os.path.abspath(os.path.join(folder, os.path.expanduser(value)))
                items.append(f"{key}={value}")
        elif value:
            items += [f"{key}:{one}" for one in value]
    return items


def check_single_line(words: Sequence[str]) -> None:
    """Raises UsageError if the words of a command contain a character that no line may contain."""
    if any(bad in word for word in words for bad in "\n\r\0"):
        raise UsageError(
            "the command contains a line break or NUL; put it into a script and give the script instead"
        )


def compose_line(compose: Callable[[], str]) -> str:
    """Returns the line that `compose` returns. Raises UsageError if the values do not form a valid line."""
    try:
        line = compose()
    except ValueError as error:
        raise UsageError(f"these values do not form a valid line: {error}") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{line!r} cannot be encoded in UTF-8") from None
    return line


def parse_new_line(line: str, cwd: str, known_gpus: frozenset[int] | None) -> tuple[JobSpec, list[str]]:
    """Parses the line as the scheduler does; returns its job and, for a command, the parser's notes.

    cwd: the absolute path of the working folder. Raises UsageError for a malformed line.
    """
    try:
        spec, notes = parse_job_line(line, cwd, known_gpus)
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None
    return spec, list(notes) if spec.kind == "command" else []


def job_warnings(recorded: RecordedSetting, spec: JobSpec) -> Iterator[LineNote]:
    """Yields the warnings that `lint` gives for the job."""
    started = recorded.options
    conda_sh = conda_sh_of(recorded.scheduler_pid, started.conda_sh if started else None)
    if conda_sh is None:
        spec = replace(spec, conda=None)  # no warning: the scheduler's machine may have conda
    context = PreviewContext(
        LlmConfig() if started is None else current_llm_config(started),
        recorded.known_gpus,
        conda_sh,
        os.path.exists,
        _conda_environments(conda_sh, spec.conda) if conda_sh and spec.conda else None,
        recorded.totals_mib,
        started or Limits(),
        job_shell(os.environ),
    )
    yield from preview(0, spec, (), None, context).warnings


def _conda_environments(conda_sh: str, name: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails.

    Asking conda takes a second. This is not necessary if the environment is in its usual place.
    """
    if name == "base" or (Path(conda_sh).parents[2] / "envs" / name).is_dir():
        return [name]
    return known_environments(conda_sh)
