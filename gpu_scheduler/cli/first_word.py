"""Decides whether the first word is a command or a jobs file (short for `start --jobs-file FILE --drain`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

#: The options that are accepted before the command: those that need a value, and those that do not.
_OPTIONS_WITH_VALUE = ("--state-file", "--data-dir")
_FLAGS = ("-h", "--help", "--version")
_JOBS_PLACEHOLDER, _JOB_SET_OPTIONS = "JOB…", ("--all", "--failed")
#: Command names of other programs, with the equivalent command of this program.
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "queue", "squeue", "jobs"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("sbatch", "qsub", "enqueue"), "submit"),
    **dict.fromkeys(("kill", "rm", "remove", "delete", "scancel"), f"cancel {_JOBS_PLACEHOLDER}"),
    **dict.fromkeys(("rerun", "restart", "requeue"), f"retry {_JOBS_PLACEHOLDER}"),
}


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
        elif word in ("-", "--") or word.startswith(tuple(f"{name}=" for name in _OPTIONS_WITH_VALUE)):
            continue
        elif word not in _FLAGS:
            raise ValueError(
                f"{word}: put options after the command or the jobs file, as in `start {word}` or"
                f" `jobs.txt {word}`"
            )
    return None


def _suggested_command(command: str, behind: Sequence[str]) -> str:
    """Returns the command to suggest to a user who typed the command of another program.

    behind: the words after it. The suggestion keeps job names and drops the other program's options.
    """
    if not command.endswith(_JOBS_PLACEHOLDER):
        return command
    names = [name for name in behind if name in _JOB_SET_OPTIONS or not name.startswith("-")]
    return command.replace(_JOBS_PLACEHOLDER, shlex.join(names)) if names else command


def _file_index(index: int, words: Sequence[str], commands: Collection[str]) -> int:
    word, behind = words[index], words[index + 1 :]
    if os.path.exists(word):
        return index
    from difflib import get_close_matches

    near = get_close_matches(word, commands, 1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    if word in _SYNONYMS:
        meant = f"; did you mean `{_suggested_command(_SYNONYMS[word], behind)}`?"
    raise ValueError(f"{word!r} is neither a command nor an existing file{meant}")
