"""Decides whether the first word is a command or a jobs file (short for `start --jobs-file FILE --drain`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

#: Options accepted before the command: those with a value, and those without.
_VALUED = ("--state-file", "--data-dir")
_PLAIN = ("-h", "--help", "--version")
_JOBS, _SETS = "JOB…", ("--all", "--failed")
#: Command names of other programs, with the command here that does the same.
_NEIGHBORS = {
    **dict.fromkeys(("list", "ls", "ps", "queue", "squeue", "jobs"), "status"),
    **dict.fromkeys(("top", "watch"), "status --watch"),
    **dict.fromkeys(("kill", "rm", "remove", "delete", "scancel"), f"cancel {_JOBS}"),
    **dict.fromkeys(("rerun", "restart", "requeue"), f"retry {_JOBS}"),
}


def jobs_file_at(words: Sequence[str], commands: Collection[str]) -> int | None:
    """Returns the index of the jobs file given instead of a command; None if there is a command, or nothing.

    Raises ValueError for a word that is neither, and for an option before the command that belongs after it.
    """
    rest = iter(enumerate(words))
    for index, word in rest:
        if word in _VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            return None if word in commands else _file(index, words, commands)
        elif word in ("-", "--") or word.startswith(tuple(f"{name}=" for name in _VALUED)):
            continue
        elif word not in _PLAIN:
            raise ValueError(
                f"{word}: put options after the command or the jobs file, as in `start {word}` or"
                f" `jobs.txt {word}`"
            )
    return None


def _command(meant: str, behind: Sequence[str]) -> str:
    """Returns the command to suggest for a word of another program.

    behind: the words after it; names of jobs among them are kept, options of the other program are not.
    """
    if not meant.endswith(_JOBS):
        return meant
    names = [name for name in behind if name in _SETS or not name.startswith("-")]
    return meant.replace(_JOBS, shlex.join(names)) if names else meant


def _file(index: int, words: Sequence[str], commands: Collection[str]) -> int:
    word, behind = words[index], words[index + 1 :]
    if os.path.exists(word):
        return index
    from difflib import get_close_matches

    near = get_close_matches(word, commands, 1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    if word in _NEIGHBORS:
        meant = f"; did you mean `{_command(_NEIGHBORS[word], behind)}`?"
    raise ValueError(f"{word!r} is neither a command nor an existing file{meant}")
