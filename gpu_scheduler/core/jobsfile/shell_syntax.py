"""Inspects a shell command without running a shell.

Detects commands that run in the background, continue on the next line, need a check by `bash -n`, or choose
their own GPUs.
"""

from __future__ import annotations

import re

from gpu_scheduler.core.text.quoting import mask_quoted

ACCEPTED_FORM = "one complete shell command on one line, in the foreground; put a longer one into a script"

RESERVED = (
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select",
    "function", "time", "coproc", "{", "}", "!", "[[",
)  # fmt: skip
BUILTINS = (
    ".", ":", "[", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "command", "compgen",
    "complete", "compopt", "continue", "declare", "dirs", "disown", "echo", "enable", "eval", "exec",
    "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs", "kill", "let",
    "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readarray", "readonly",
    "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "wait",
)  # fmt: skip
#: Text in which bash cannot find a syntax error: plain words and simple quotes.
_PLAIN = re.compile(r"""(?:[^'"`$\\;&|<>(){}!]|'[^']*'|"[^"\\$`!]*")*""")
#: Text that bash may parse as an array subscript, which extends to its `]` even across words and lines.
SUBSCRIPT = re.compile(r"(?<![^\s;&|(){}`])[A-Za-z_]\w*\[")
_SETS_CUDA = re.compile(r"(?:^|[\s;&|({\"'])CUDA_VISIBLE_DEVICES=")


def check_finished(text: str) -> None:
    """Raises ValueError for a command that ends in an unquoted `&` or a backslash."""
    if text.endswith("\\") and _ends_in_odd_backslashes(text):
        raise ValueError("it ends in a backslash, but a command cannot continue on the next line")
    if (
        re.search(r"(?<!&)&$", text)
        and mask_quoted(text) is not None
        and not _ends_in_odd_backslashes(text[:-1])
    ):
        raise ValueError(
            "it ends in `&`, so the job would complete at once and its processes would be ended; remove the"
            " `&`, because the scheduler runs every line in the background"
        )


def _ends_in_odd_backslashes(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def needs_bash(text: str) -> bool:
    """Returns whether the command contains shell syntax that `bash -n` could reject."""
    if not _PLAIN.fullmatch(text) or SUBSCRIPT.search(text):
        return True
    return re.split(r"[ \t]", text, maxsplit=1)[0] in RESERVED


def cuda_override_note(text: str) -> str | None:
    """Returns the warning for a command that sets CUDA_VISIBLE_DEVICES itself; None for other commands."""
    if not _SETS_CUDA.search(text):
        return None
    return (
        "the command sets CUDA_VISIBLE_DEVICES itself and so ignores the GPUs allocated to it; remove the"
        " variable, and name the GPUs that the job may use at the start of the line, as in [allowed=0]"
    )
