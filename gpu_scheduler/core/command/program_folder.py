"""Finds the folder in which a job's command runs its program, after each `cd` at its beginning."""

from __future__ import annotations

import posixpath

from gpu_scheduler.core.command.script_place import PASSIVE, SimpleCommand, is_clear, simple_commands
from gpu_scheduler.core.model.job_spec import JobSpec


def program_folder(spec: JobSpec) -> str | None:
    """Returns the folder in which the program of a job runs; None if only a shell knows it.

    It is the job's working folder unless the command begins like `cd DIR && python train.py`. A folder that
    begins with "~" is returned as it is written.
    """
    if spec.kind == "csv" or spec.command is None or "cd" not in spec.command:
        return spec.cwd
    parts = simple_commands(spec.command)
    if parts is None:
        return None
    folder = spec.cwd
    for part in parts:
        if part.first not in PASSIVE:
            break
        if part.first == "cd":
            target = _target(spec.command, part)
            if target is None:
                return None
            folder = target if target.startswith("~") else posixpath.join(folder, target)
    return folder


def _target(command: str, part: SimpleCommand) -> str | None:
    """Returns the folder that is the only word after `cd`; None if it is not known."""
    words = [word for word in part.words[1:] if word.unquoted != "--"]
    if part.words[0].unquoted != "cd" or len(words) != 1 or not is_clear(command, words[0]):
        return None
    text = words[0].unquoted
    return None if text.startswith("-") or any(each in text for each in "$`*?[\0") else text
