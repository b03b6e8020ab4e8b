"""Puts the checkpoint from which a job resumes into the command of the job.

The value of the job's resume flag is replaced where the flag stands; otherwise, the flag is added directly
after the script, or after a subcommand of LightningCLI. A command that mentions GPU_SCHEDULER_CHECKPOINT
reads the path from its environment, so it stays as it is. This module neither looks for checkpoints nor
checks that a path exists.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.core.command.shell_words import (
    ShellWord,
    after_subcommand,
    find_script_end,
    is_clear,
    is_value_of,
    simple_commands,
)
from gpu_scheduler.core.model.job_spec import JobSpec

DEFAULT_FLAG = "--resume_from_checkpoint"
#: The variable that contains the path in every resumed attempt.
VARIABLE = "GPU_SCHEDULER_CHECKPOINT"


def with_checkpoint(spec: JobSpec, path: str) -> JobSpec | None:
    """Returns the job as it resumes from the checkpoint at `path`; None if there is no place for the path."""
    flag = spec.resume_flag or DEFAULT_FLAG
    if spec.kind == "csv":
        return replace(spec, arguments=_in_arguments(spec.arguments, flag, path))
    command = spec.command or ""
    if VARIABLE in command:
        return spec
    changed = _in_command(command, flag, path, shell_scripts=spec.resume_flag is not None)
    return None if changed is None else replace(spec, command=changed)


def has_place(spec: JobSpec) -> bool:
    """Returns whether the command of a job has a place for the path of a checkpoint."""
    return with_checkpoint(spec, "/") is not None


def stands_in(spec: JobSpec) -> bool:
    """Returns whether the scheduler itself may resume the job, because the user has said how.

    The user has said so with resume-flag=, or if the flag or the variable stands in the command.
    """
    flag = spec.resume_flag or DEFAULT_FLAG
    if spec.kind == "csv":
        named = any(_is_flag(word, flag) for word in spec.arguments)
    else:
        parts = simple_commands(spec.command or "") or []
        named = any(_is_flag(word.unquoted, flag) for part in parts for word in part.words)
        named = named or VARIABLE in (spec.command or "")
    return (spec.resume_flag is not None or named) and has_place(spec)


def _is_flag(word: str, flag: str) -> bool:
    """Returns whether a word is the flag, with or without a value.

    `-` and `_` count as equal, because the argument parsers of training scripts accept both: of two spellings
    in a command, the last one would win.
    """
    return word.partition("=")[0].replace("-", "_") == flag.replace("-", "_")


def _in_arguments(arguments: Sequence[str], flag: str, path: str) -> tuple[str, ...]:
    changed: list[str] = []
    present, value_follows = False, False
    for word in arguments:
        if value_follows and not word.startswith("-"):
            value_follows = False
            continue
        value_follows = False
        if not _is_flag(word, flag):
            changed.append(word)
            continue
        present = True
        name, joined, _ = word.partition("=")
        changed += [f"{name}={path}"] if joined else [name, path]
        value_follows = not joined
    at = after_subcommand(arguments)
    return tuple(changed) if present else (*arguments[:at], flag, path, *arguments[at:])


def _in_command(command: str, flag: str, path: str, *, shell_scripts: bool) -> str | None:
    parts = simple_commands(command)
    if parts is None:
        return None
    holders = [part.words for part in parts if any(_is_flag(word.unquoted, flag) for word in part.words)]
    if len(holders) == 1:
        return _replace_flag(command, holders[0], flag, shlex.quote(path))
    if holders:
        return None
    end = find_script_end(command)
    if end is None and shell_scripts:
        end = find_script_end(command, shell_scripts=True)
    return None if end is None else f"{command[:end]} {shlex.join([flag, path])}{command[end:]}"


def _replace_flag(command: str, words: Sequence[ShellWord], flag: str, value: str) -> str | None:
    """Returns the shell text with this value for the flag; None if the value there is not wholly known."""
    changed, done = "", 0
    for word, following in zip(words, [*words[1:], None], strict=True):
        if not _is_flag(word.unquoted, flag):
            continue
        last = word
        name, joined, _ = word.unquoted.partition("=")
        if not joined and following is not None and is_value_of(command, word, following):
            last = following
        if not (is_clear(command, word) and is_clear(command, last)):
            return None
        if not joined and command[last.end :].lstrip(" \t").startswith("`"):
            return None
        changed += f"{command[done : word.start]}{shlex.quote(name)}{'=' if joined else ' '}{value}"
        done = last.end
    return changed + command[done:]
