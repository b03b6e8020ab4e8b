"""Rewrites `--cuda IDS` in a job's command, or adds it if the job requests that.

In shell text, only whole words are changed, never part of a quoted text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from gpu_scheduler.core.command.shell_words import ShellWord, is_value_of, shell_words
from gpu_scheduler.core.model.job_spec import CudaIds, CudaMode

_OPTION = "--cuda"


def format_ids(gpus: Sequence[int], ids: CudaIds) -> str:
    """Returns the value of `--cuda`: the indices of the GPUs, or 0..n-1 for scripts that use visible ids."""
    return ",".join(map(str, gpus if ids == "physical" else range(len(gpus))))


def rewrite_arguments(arguments: Sequence[str], ids: str, mode: CudaMode) -> tuple[str, ...]:
    """Returns a script's arguments with `--cuda IDS`. A `--cuda` flag without a value is unchanged."""
    if mode == "off":
        return tuple(arguments)
    changed = list(arguments)
    present = False
    for i, word in enumerate(changed):
        if word.startswith(f"{_OPTION}="):
            changed[i] = f"{_OPTION}={ids}"
            present = True
        elif word == _OPTION:
            present = True
            if i + 1 < len(changed) and not changed[i + 1].startswith("-"):
                changed[i + 1] = ids
    if mode == "add" and not present:
        end = changed.index("--") if "--" in changed else len(changed)
        changed[end:end] = [_OPTION, ids]
    return tuple(changed)


def rewrite_command(command: str, ids: str, mode: CudaMode) -> str | None:
    """Returns the shell text with `--cuda IDS`; None if it must be added but its place is unclear.

    The option is added to the last command of a list (`a && b`), never to a pipeline, a group or a
    here-document.
    """
    if mode == "off":
        return command
    words = shell_words(command)
    changed, done, present = [], 0, False
    for word, following in zip_longest(words, words[1:]):
        if word.unquoted.startswith(f"{_OPTION}="):
            changed += [command[done : word.start], f"{_OPTION}={ids}"]
            done, present = word.end, True
        elif word.unquoted == _OPTION:
            present = True
            if following is not None and is_value_of(command, word, following):
                changed += [command[done : following.start], ids]
                done = following.end
    if mode == "add" and not present:
        return f"{command.rstrip()} {_OPTION} {ids}" if _can_append(command, words) else None
    return "".join(changed) + command[done:]


def _can_append(command: str, words: Sequence[ShellWord]) -> bool:
    """Returns whether words appended to the text would become arguments of its last command."""
    outside, done = [], 0
    for word in words:
        outside.append(command[done : word.start])
        done = word.end
    outside.append(command[done:])
    operators = "".join(outside).replace("||", "")
    ends_in_word = bool(words) and command[words[-1].end :].strip() == ""
    group = any(word.unquoted in ("}", "fi", "done", "esac", "]]") for word in words)
    return ends_in_word and not group and not re.search(r"[|()`]|<<|\n", operators)
