"""Turns a pending job of a `queue.json` into the job that runs its script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.intake.queue_json import QueueEntry
from gpu_scheduler.intake.text_parser import parse_job_line

#: Variables that the scheduler sets for every job.
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True)
class QueuedCommand:
    """The job for an entry. ignored: the variables in its `env` that the scheduler sets itself."""

    spec: JobSpec
    ignored: Mapping[str, str]


def queued_command(entry: QueueEntry, cwd: str, *, hold: bool) -> QueuedCommand:
    """Returns the job for a pending entry. Raises ValueError with all its problems.

    cwd: the folder for relative paths, and the working folder of an entry that names none; hold: hold the
    job.
    """
    folder = _absolute(entry.cwd or ".", cwd)
    script = _absolute(entry.script, folder)
    python = _absolute(entry.python, folder) if entry.python and "/" in entry.python else None
    problems = list(_problems(folder, script, python))
    if problems:
        raise ValueError("; ".join(problems))
    program, venv = entry.python or "python3", None
    if python is not None:
        program, venv = python, _virtual_environment(python)
    if venv is not None:
        program = os.path.basename(python or program)
    ignored = {name: entry.env[name] for name in _OWN_VARIABLES if name in entry.env}
    items = [f"env:{key}={value}" for key, value in entry.env.items() if key not in ignored]
    for key, given in (("name", _job_name(entry)), ("venv", venv), ("fail-retries", entry.retries or None)):
        items += [] if given is None else [f"{key}={given}"]
    words = [program, "-u", _as_argument(entry.script), *entry.args]
    spec, _ = parse_job_line(format_command_line(items, words), folder, None)
    return QueuedCommand(replace(spec, hold=hold), ignored)


def _job_name(entry: QueueEntry) -> str | None:
    """Returns the name of the job, with `-` in place of the characters that names may not contain."""
    return _NOT_IN_NAMES.sub("-", entry.name or "").strip("-")[:_MAX_NAME_CHARACTERS] or None


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _as_argument(script: str) -> str:
    """Returns the path as written, or in a form that the interpreter does not mistake for an option."""
    return f"./{script}" if script.startswith("-") else os.path.expanduser(script)


def _problems(folder: str, script: str, python: str | None) -> Iterator[str]:
    if not os.path.isdir(folder):
        yield f"the working folder {folder} does not exist"
    elif not os.path.isfile(script):
        yield f"script {script} {'is not a file' if os.path.exists(script) else 'does not exist'}"
    if python is not None and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        yield f"the interpreter {python} does not exist or is not executable"


def _virtual_environment(python: str) -> str | None:
    """Returns the virtual environment to which an interpreter belongs; None if it belongs to none."""
    programs, root = os.path.dirname(python), os.path.dirname(os.path.dirname(python))
    parts = (f"{root}/pyvenv.cfg", f"{root}/bin/activate")
    return root if os.path.basename(programs) == "bin" and all(map(os.path.isfile, parts)) else None
