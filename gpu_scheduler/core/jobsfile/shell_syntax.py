"""Inspects a shell command without running a shell.

Detects commands that run in the background, continue on the next line, change only their own shell, need a
check by `bash -n`, or choose their own GPUs; and files that are scripts, not jobs files.
"""

from __future__ import annotations

import re
import shlex

from gpu_scheduler.core.text.parsing import find_comment, mask_quoted

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
#: One assignment, or builtins that do no more than change the shell that runs them, without operators and
#: substitutions.
_PIECE = r"""(?:[^\s'"`\\;&|<>()$]|\$(?!\()|\\.|'[^']*'|"(?:[^"\\`$]|\\.|\$(?!\())*")"""
_CHANGE = re.compile(
    r"(?:alias|cd|declare|export|popd|pushd|readonly|set|shopt|typeset|umask|unalias|unset)"
    rf"(?:[ \t]+{_PIECE}+)+|[A-Za-z_]\w*\+?={_PIECE}*(?:[ \t]+[A-Za-z_]\w*\+?={_PIECE}*)*"
)
#: Lines of a Python script, and parts of a compound command that stand on lines of their own.
_SCRIPT_LINE = re.compile(
    r"(?:then|else|fi|do|done|esac|\})(?:[ \t]*[;#]|$)|import \w|from [\w.]+ import "
    r"|(?:cd|pushd)(?:[ \t][^;&]*)?$"
)
SHELL_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm")
_SCRIPT_ENDINGS = (*SHELL_ENDINGS, ".py", ".ipynb")
_SETS_CUDA = re.compile(r"(?:^|[\s;&|({\"'])CUDA_VISIBLE_DEVICES=")
OR_BACKGROUND = ", or give background=wait (background=ignore if that work does not matter)"
_NO_WINDOW = "run the command itself; `start --screen` gives each job a window"
#: A pattern for each command that starts work without waiting for it, with its name and remedy. The last
#: three may give it to a server, so that the scheduler neither sees nor ends it.
_BACKGROUND = (
    (re.compile(r"&$"), "`&` without `wait`", f"add `wait` at the end{OR_BACKGROUND}"),
    (re.compile(r"disown\b"), "`disown`", f"add `wait` at the end instead{OR_BACKGROUND}"),
    (re.compile(r"\Asetsid\s(?!\s*(?:-w|--wait)\b)"), "`setsid`", f"write `setsid --wait`{OR_BACKGROUND}"),
    (re.compile(r"\Ascreen\s.*-(?:[A-Za-z]*d|d\s-)m"), "`screen -dm`", _NO_WINDOW),
    (re.compile(r"\Atmux\s+new(?:-session)?\s(?:.*\s)?-[A-Za-z]*d"), "`tmux new -d`", _NO_WINDOW),
    (re.compile(r"\A(?:docker|podman)\s.*\s(?:-[itP]*d[itP]*|--detach)\b"), "`docker run -d`", "omit -d"),
)


def background_work(text: str) -> dict[str, str]:
    """Returns the commands in a shell text that start work without waiting for it, with their remedies."""
    plain = "\n".join(line[: find_comment(line)] for line in text.splitlines())
    found: dict[str, str] = {}
    for part in re.split(r"(&&|[;&|()\n])", re.sub(r"[<>]&|&>|\|&", " ", mask_quoted(plain) or plain)):
        command = part.strip().removeprefix("sudo ").removeprefix("nohup ")
        found |= {form: remedy for pattern, form, remedy in _BACKGROUND if pattern.match(command)}
        if command.partition(" ")[0] == "wait":
            found.pop("`&` without `wait`", None)
    return found


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


#: Quotes of a word processor in place of those of the shell: a double one, or single ones around text.
_SMART_QUOTES = re.compile(
    "(?<![^\\s=,:(])[\u201c-\u201e]|(?<=\\S)\u201d(?![^\\s,;|&)\\]])"
    "|(?<![^\\s=,:(])[\u2018-\u201a][^\u2018\u2019]*[\u2018\u2019](?![^\\s,;|&)\\]])"
)
#: A dash or a minus sign that stands where an option begins.
_LONG_DASH = re.compile("(?<!\\S)-?[\u2010-\u2015\u2212]-?([A-Za-z][\\w-]*)")
_STRAIGHT_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""")
_WINDOWS_PATH = re.compile(r"(?<![^\s=,])([A-Za-z]:\\)[\w.][^\s,:]*(?![^\s,])")


def check_characters(text: str) -> None:
    """Raises ValueError for quotes and dashes of a word processor and for Windows paths, outside quotes."""
    if text.isascii() and ":\\" not in text:
        return
    bare = mask_quoted(text) or ""
    if quote := _SMART_QUOTES.search(bare):
        raise ValueError(
            f"{quote[0][0]} is not a quote of the shell; write straight quotes (\" or '), also around text"
            " that contains it"
        )
    if dash := _LONG_DASH.search(bare):
        raise ValueError(
            f"the dash of {dash[0]} is not a hyphen; write --{dash[1]} (or -{dash[1]}), or put"
            " straight quotes around the text"
        )
    if path := _WINDOWS_PATH.search(_STRAIGHT_QUOTED.sub("_", text)):
        raise ValueError(f"{path[1]}… is a path of Windows; write the path on this machine, such as /mnt/c/…")


def check_effect(text: str) -> None:
    """Raises ValueError for a command that does no more than change the shell that runs it."""
    if _CHANGE.fullmatch(text):
        raise ValueError(
            "it only changes its own shell, which ends with the line; write it before the command that needs"
            " it, as in `cd exp && python train.py`"
        )


def script_refusal(path: str, content: bytes) -> str | None:
    """Returns why a file is no jobs file, with the command that submits it; None unless it is a script."""
    text = content.decode(errors="replace")
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    signs = [bool(_SCRIPT_LINE.match(line) or _CHANGE.fullmatch(line)) for line in lines]
    interpreter = re.match(r"\ufeff?#![ \t]*(\S.*)", text)
    if not (path.endswith(_SCRIPT_ENDINGS) or interpreter or any(signs[:1]) or sum(signs) >= 3):
        return None
    program = "python " if any(line.startswith(("import ", "from ")) for line in lines) else "bash "
    front = f"-- {interpreter[1].strip()} " if interpreter else f"-- {program}"
    if path.endswith(_SCRIPT_ENDINGS):
        front = "-- jupyter execute " if path.endswith(".ipynb") else ""
    return (
        f"{path} is a script, not a jobs file, of which every line would run as a job of its own;"
        f" `submit {front}{shlex.quote(path)}` runs it as one job"
    )


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
