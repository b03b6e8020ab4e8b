"""Decides whether the first word is a command or a jobs file (short for `start --jobs-file FILE --drain`)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from gpu_scheduler.cli.suggestions import meant_commands
from gpu_scheduler.config import PIPE_REMEDY

#: The options that are accepted before the command: those that need a value, and those that do not.
_OPTIONS_WITH_VALUE = ("--state-file", "--data-dir")
_FLAGS = ("-h", "--help", "--version")


def jobs_file_index(words: Sequence[str], commands: Collection[str]) -> int | None:
    """Returns the index of the jobs file if one is given in place of a command, otherwise None.

    Raises ValueError if the first word is neither a command nor a file, or if an option that belongs after
    the command comes before it.
    """
    index = first_word_index(words)
    return None if index is None or words[index] in commands else _file_index(index, words, commands)


def first_word_index(words: Sequence[str]) -> int | None:
    """Returns the index of the first word that is not an option or its value; None if there is none.

    Raises ValueError if an option that belongs after the command comes before it.
    """
    rest = iter(enumerate(words))
    for index, word in rest:
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return index
        elif word == "-":
            raise ValueError(f"standard input cannot be a jobs file; {PIPE_REMEDY}")
        elif word == "--" or word.startswith(tuple(f"{name}=" for name in _OPTIONS_WITH_VALUE)):
            continue
        elif word not in _FLAGS:
            raise ValueError(
                f"{word}: put options after the command or the jobs file, as in `start {word}` or"
                f" `jobs.txt {word}`"
            )
    return None


def _file_index(index: int, words: Sequence[str], commands: Collection[str]) -> int:
    word, behind = words[index], words[index + 1 :]
    if os.path.exists(word):
        return index
    meant = " or ".join(f"`{command}`" for command in meant_commands(word, behind, commands))
    question = f"; did you mean {meant}?" if meant else ""
    raise ValueError(f"{word!r} is neither a command nor an existing file{question}")
