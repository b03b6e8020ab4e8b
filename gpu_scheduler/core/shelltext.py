"""What can be told of a shell command without a shell: whether it would detach itself or go on in the next
line, whether `bash -n` should be asked, and whether it chooses its GPUs itself."""

from __future__ import annotations

import re

from gpu_scheduler.core.words import quotes_closed

ACCEPTED = "one whole shell command on one line, in the foreground; or a script that holds the rest"

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
#: What bash may take for the subscript of an array, which goes on until its `]`, over words and lines.
SUBSCRIPT = re.compile(r"(?<![^\s;&|(){}`])[A-Za-z_]\w*\[")
_SETS_CUDA = re.compile(r"(?:^|[\s;&|({\"'])CUDA_VISIBLE_DEVICES=")


def refuse_unfinished(text: str) -> None:
    """Raise ValueError for a command that ends in an unquoted `&` or a backslash."""
    if text.endswith("\\") and _odd_backslashes(text):
        raise ValueError("it ends in a backslash: a command does not go on in the next line")
    if re.search(r"(?<!&)&$", text) and quotes_closed(text) and not _odd_backslashes(text[:-1]):
        raise ValueError(
            "it ends in `&`: the job would complete at once and be ended; leave out the `&`, the scheduler"
            " runs every line in the background"
        )


def _odd_backslashes(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def needs_bash(text: str) -> bool:
    """Whether the command has shell syntax, so that `bash -n` can refuse it."""
    if not _PLAIN.fullmatch(text) or SUBSCRIPT.search(text):
        return True
    return re.split(r"[ \t]", text, maxsplit=1)[0] in RESERVED


def cuda_note(text: str) -> str | None:
    """What to tell about a command that sets CUDA_VISIBLE_DEVICES itself; None if it does not."""
    if not _SETS_CUDA.search(text):
        return None
    return (
        "sets CUDA_VISIBLE_DEVICES itself, so that it uses other GPUs than it is given; leave that out and"
        " write the GPUs it may use in front, as in [allowed=0]"
    )
