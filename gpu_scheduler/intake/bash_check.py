"""Checks the syntax of commands with `bash -n`, which runs nothing.

Many commands are checked at once, because one process for each of 20,000 lines would take a minute.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.core.jobsfile.shell_syntax import SUBSCRIPT
from gpu_scheduler.core.text.quoting import mask_quoted
from gpu_scheduler.system.shortages import reraise_shortage

#: Timeout of one check, in seconds. A shell that does not answer has refused nothing.
_TIMEOUT_S = 20.0
#: Exit codes of a bash that has read its input.
_CONCLUSIVE_EXIT_CODES = (0, 1, 2)
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}
#: After so many refusals, the remaining suspects are not checked one by one but treated as refused.
_MAX_REFUSALS = 200
_MESSAGE_PREFIX = re.compile(r"^bash: (?:-c: )?(?:line \d+: |warning: )*")


@dataclass(frozen=True)
class Refusal:
    """The reason why bash refuses a command. unfinished: more lines could complete it; an open quote does not
    count, because a quote never joins two lines."""

    reason: str
    unfinished: bool


_NOT_CHECKED = Refusal(
    f"not checked: bash refuses {_MAX_REFUSALS} other commands of the file; fix those first", False
)


def find_refusals(commands: Sequence[str]) -> dict[str, Refusal]:
    """Returns the commands that bash refuses, none if there is no bash. Raises OSError for a shortage."""
    found: dict[str, Refusal] = {}
    waiting: list[list[str]] = []
    together: list[str] = []
    for command in dict.fromkeys(commands):
        if _can_be_batched(command):
            together.append(command)
        else:
            waiting.append([command])
    waiting.append(together)
    while waiting:
        some = waiting.pop()
        if not some:
            continue
        if len(found) >= _MAX_REFUSALS:
            found.update((command, _NOT_CHECKED) for command in some)
        elif len(some) == 1:
            refusal = _check_one(some[0])
            if refusal is not None:
                found[some[0]] = refusal
        elif _syntax_error("".join(f"{{ {command}\n}}\n" for command in some)):
            half = len(some) // 2
            waiting += [some[:half], some[half:]]
    return found


_VARIABLE = re.compile(r"\$\{[^{}`()]*\}")
_OPENING_OR_CLOSING = re.compile(
    r"(?<![^\s;&|(){}`])(?:if|fi|for|while|until|select|done|case|esac|\{|\}|\[\[|\]\])(?![^\s;&|()`])|[()`{}]"
)
#: A test that ends where an operand is expected: `bash -n` reports neither it nor anything after it.
_EMPTY_TEST = re.compile(r"(?:\[\[|!|&&|\|\|)\s*\]\]")
_CLOSING = {")": "(", "}": "{", "]]": "[[", "fi": "if", "esac": "case"}


def _can_be_batched(command: str) -> bool:
    """Returns whether the command can be checked together with others.

    That is so if no other command could close what it leaves open, or open what it closes too often. May
    return False for a complete command.
    """
    bare = mask_quoted(command)
    if bare is None or "<<" in bare or _EMPTY_TEST.search(bare) or SUBSCRIPT.search(bare):
        return False
    # Inside double quotes, a substitution may open something that only the other quote closes.
    if re.search(r'"[^"]*(?:\$[({]|`)', command) and not _is_balanced(command):
        return False
    open_ones: list[str] = []
    for match in _OPENING_OR_CLOSING.finditer(_VARIABLE.sub("_", bare)):
        token = match[0]
        if token == "`":
            closes = bool(open_ones) and open_ones[-1] == "`"
        elif token == "done":
            closes = bool(open_ones) and open_ones[-1] in ("for", "while", "until", "select")
        else:
            closes = token in _CLOSING and bool(open_ones) and open_ones[-1] == _CLOSING[token]
        if closes:
            open_ones.pop()
        elif token in _CLOSING or token == "done":
            return False
        else:
            open_ones.append(token)
    return not open_ones


def _is_balanced(command: str) -> bool:
    """Returns whether brackets, backquotes and double quotes are balanced by number."""
    count = command.count
    return (
        count("(") == count(")") and count("{") == count("}") and count("`") % 2 == 0 and count('"') % 2 == 0
    )


def is_complete(text: str) -> bool:
    """Returns whether lines joined by line breaks are complete commands. Raises OSError for a shortage."""
    return _syntax_error(text + "\n") == ""


def _syntax_error(script: str) -> str:
    """Returns the errors that bash reports for a script, "" if none. Raises OSError for a shortage."""
    try:
        process = subprocess.run(
            ["bash", "--norc", "--noprofile", "-n"],
            input=script.encode("utf-8", "surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            reraise_shortage(error)
        return ""
    if process.returncode not in _CONCLUSIVE_EXIT_CODES:
        # It could not be loaded, or was killed, because memory or open files ran out.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "bash")
    return process.stderr.decode("utf-8", "replace").strip() or ("refused" if process.returncode else "")


def _check_one(command: str) -> Refusal | None:
    complaint = _syntax_error(command + "\n")
    if not complaint:
        return None
    lines = [_MESSAGE_PREFIX.sub("", line) for line in complaint.splitlines()]
    quote = any("looking for matching `\"'" in line or "looking for matching `''" in line for line in lines)
    ends_early = re.search(r"unexpected end of file|unexpected EOF|here-document", complaint)
    reason = lines[0].removeprefix("syntax error: ").removeprefix("syntax error ")
    return Refusal(f"bash refuses it: {reason}", bool(ends_early) and not quote)
