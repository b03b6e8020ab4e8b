"""The question to `bash -n`: does bash refuse this command? Nothing is run. Many commands are asked about at
once, because a process for each of 20,000 lines would take a minute."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.core.shelltext import SUBSCRIPT
from gpu_scheduler.core.words import unquoted
from gpu_scheduler.shortages import reraise

#: Seconds for one question. A shell that does not answer has refused nothing.
_PATIENCE_S = 20.0
#: Exit codes of a bash that has read what it was given.
_ANSWERS = (0, 1, 2)
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}
#: After so many refusals the rest are not asked about one by one, but taken to be refused.
_MOST = 200
_WHERE = re.compile(r"^bash: (?:-c: )?(?:line \d+: |warning: )*")


@dataclass(frozen=True)
class Refusal:
    """Why bash refuses a command. unfinished: more lines could complete it (a quote that is open does not
    count: a quote never joins two lines)."""

    reason: str
    unfinished: bool


_NOT_ASKED = Refusal(f"it was not checked: {_MOST} other commands of the file are refused; mend those", False)


def refusals(commands: Sequence[str]) -> dict[str, Refusal]:
    """The commands that bash refuses. Empty where there is no bash to ask. Raises OSError for a shortage."""
    found: dict[str, Refusal] = {}
    waiting: list[list[str]] = []
    together: list[str] = []
    for command in dict.fromkeys(commands):
        if _stands_alone(command):
            together.append(command)
        else:
            waiting.append([command])
    waiting.append(together)
    while waiting:
        some = waiting.pop()
        if not some:
            continue
        if len(found) >= _MOST:
            found.update((command, _NOT_ASKED) for command in some)
        elif len(some) == 1:
            refusal = _refusal(some[0])
            if refusal is not None:
                found[some[0]] = refusal
        elif _complaint("".join(f"{{ {command}\n}}\n" for command in some)):
            half = len(some) // 2
            waiting += [some[:half], some[half:]]
    return found


_VARIABLE = re.compile(r"\$\{[^{}`()]*\}")
_BRACKET = re.compile(
    r"(?<![^\s;&|(){}`])(?:if|fi|for|while|until|select|done|case|esac|\{|\}|\[\[|\]\])(?![^\s;&|()`])|[()`{}]"
)
#: A test whose end comes where an operand should: `bash -n` is silent, and silent about what follows, too.
_UNMET = re.compile(r"(?:\[\[|!|&&|\|\|)\s*\]\]")
_CLOSING = {")": "(", "}": "{", "]]": "[[", "fi": "if", "esac": "case"}


def _stands_alone(command: str) -> bool:
    """Whether the command can be asked about together with others: nothing that it leaves open, or closes too
    often, could be made up for by another one. May say no to a command that is whole."""
    bare = unquoted(command)
    if bare is None or "<<" in bare or _UNMET.search(bare) or SUBSCRIPT.search(bare):
        return False
    # Inside double quotes a substitution may open what only the other quote closes.
    if re.search(r'"[^"]*(?:\$[({]|`)', command) and not _even(command):
        return False
    open_ones: list[str] = []
    for match in _BRACKET.finditer(_VARIABLE.sub("_", bare)):
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


def _even(command: str) -> bool:
    """Whether what can stand inside double quotes is balanced by number."""
    count = command.count
    return (
        count("(") == count(")") and count("{") == count("}") and count("`") % 2 == 0 and count('"') % 2 == 0
    )


def completes(text: str) -> bool:
    """Whether lines joined by line breaks are whole commands. Raises OSError for a shortage."""
    return _complaint(text + "\n") == ""


def _complaint(script: str) -> str:
    """What bash says against a script; "" = nothing."""
    try:
        asked = subprocess.run(
            ["bash", "--norc", "--noprofile", "-n"],
            input=script.encode("utf-8", "surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            reraise(error)
        return ""
    if asked.returncode not in _ANSWERS:
        # It could not be loaded, or was killed, for want of memory or open files.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "bash")
    return asked.stderr.decode("utf-8", "replace").strip() or ("refused" if asked.returncode else "")


def _refusal(command: str) -> Refusal | None:
    complaint = _complaint(command + "\n")
    if not complaint:
        return None
    lines = [_WHERE.sub("", line) for line in complaint.splitlines()]
    quote = any("looking for matching `\"'" in line or "looking for matching `''" in line for line in lines)
    ends_early = re.search(r"unexpected end of file|unexpected EOF|here-document", complaint)
    reason = lines[0].removeprefix("syntax error: ").removeprefix("syntax error ")
    return Refusal(f"bash refuses it: {reason}", bool(ends_early) and not quote)
