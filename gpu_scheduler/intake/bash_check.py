"""Checks the syntax of commands with `bash -n`, which runs nothing, and describes the shell that runs jobs.

One bash process checks many commands at once: for 20,000 lines this takes 0.5 s, whereas one process for each
command would take 50 s. A command that spans several lines is reported as one mistake.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gpu_scheduler.core.jobsfile.attributes import find_block_end
from gpu_scheduler.core.jobsfile.job_line import SUBSCRIPT, Malformed, looks_like_csv
from gpu_scheduler.core.jobsfile.reading import JobShell
from gpu_scheduler.core.text.parsing import mask_quoted
from gpu_scheduler.system.shortages import reraise_shortage

#: Timeout of one check, in seconds. If bash does not finish in time, the command is not rejected.
_TIMEOUT_S = 20.0
#: Exit codes that bash returns after it has read all of its input.
_CONCLUSIVE_EXIT_CODES = (0, 1, 2)
_ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}
#: Maximum number of lines searched for the end of a command.
MAX_LINES_AHEAD = 60
#: Matches a line that may end a compound command or, if it consists of one word, a here-document.
_CLOSES = re.compile(r"\b(?:done|fi|esac)\b|[})`]|^\w+$")
#: After this many rejections, the remaining suspect commands are treated as rejected without another check.
_MAX_REFUSALS = 200
#: Maximum number of commands that one bash process checks, far fewer than it manages before its timeout.
_MAX_BATCH = 5000
_FUNCTION, _END = "BASH_FUNC_", "%%"
_MESSAGE_PREFIX = re.compile(r"^bash: (?:-c: )?(?:line \d+: |warning: )*")


class BashRefusal(Struct, frozen=True):
    """The reason why bash rejects a command.

    unfinished: whether more lines could complete the command. False for an open quote, because quoted text
    never spans several lines of a jobs file.
    """

    reason: str
    unfinished: bool


#: The refusal of a command that was not checked, because too many others are wrong.
NOT_CHECKED = BashRefusal(
    f"not checked, because bash rejects {_MAX_REFUSALS} other commands in the file; fix those first", False
)


def find_refusals(commands: Sequence[str]) -> dict[str, BashRefusal]:
    """Returns the refusal of each command that bash rejects, by command; empty if bash is not installed.

    Raises OSError if memory, processes or open files run out.
    """
    found: dict[str, BashRefusal] = {}
    waiting: list[list[str]] = []
    together: list[str] = []
    for command in dict.fromkeys(commands):
        if _can_be_batched(command):
            together.append(command)
        else:
            waiting.append([command])
    waiting += [together[first : first + _MAX_BATCH] for first in range(0, len(together), _MAX_BATCH)]
    while waiting:
        some = waiting.pop()
        if not some:
            continue
        if len(found) >= _MAX_REFUSALS:
            found.update((command, NOT_CHECKED) for command in some)
        elif len(some) == 1:
            refusal = _check_one(some[0])
            if refusal is not None:
                found[some[0]] = refusal
        elif _syntax_error("".join(_ENCLOSED.format(command=command) for command in some)):
            half = len(some) // 2
            waiting += [some[:half], some[half:]]
    return found


#: Encloses each command of a batch in brackets. bash then rejects a command that closes a bracket it did not
#: open, and a command that leaves something open, because the closing brackets do not match. A command that
#: closes exactly these brackets and opens them again would pass, so `_can_be_batched` excludes it.
_ENCLOSED = "{{ ( {{ ( {command}\n) }} ) }}\n"
#: Matches a `[[ ]]` test with a missing operand. `bash -n` reports neither this error nor any error after it.
_EMPTY_TEST = re.compile(r"(?:\[\[|!|&&|\|\|)\s*\]\]")
_BRACKETS = re.compile(r"[(){}]")
#: Matches a substitution that begins inside double quotes. It may contain further quotes: `"$(echo "a")"`.
_QUOTED_SUBSTITUTION = re.compile(r'"[^"]*(?:\$[({]|`)')


def _can_be_batched(command: str) -> bool:
    """Returns whether bash checks the text after this command even if the command is wrong.

    May return False for a correct command, which is then checked alone.
    """
    bare = mask_quoted(command)
    if bare is None or "<<" in bare or _EMPTY_TEST.search(bare) or SUBSCRIPT.search(bare):
        return False
    # bash first looks for the end of a substitution, so the quoted brackets count too.
    text = command if _QUOTED_SUBSTITUTION.search(command) else bare
    count = text.count
    if count("(") != count(")") or count("{") != count("}") or count("`") % 2 or count('"') % 2:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "({" else -1
        if depth < 0:
            return False
    return True


@lru_cache(maxsize=1024)
def is_complete(text: str) -> bool:
    """Returns whether a text of one or more lines consists of complete commands.

    Raises OSError if memory, processes or open files run out.
    """
    return _syntax_error(text + "\n") == ""


def _syntax_error(script: str) -> str:
    """Returns the errors that bash reports for a script, or "" if there are none.

    Raises OSError if memory, processes or open files run out.
    """
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
        # bash could not be loaded or was killed, because memory or open files ran out.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "bash")
    return process.stderr.decode("utf-8", "replace").strip() or ("refused" if process.returncode else "")


def _check_one(command: str) -> BashRefusal | None:
    complaint = _syntax_error(command + "\n")
    if not complaint:
        return None
    lines = [_MESSAGE_PREFIX.sub("", line) for line in complaint.splitlines()]
    quote = any("looking for matching `\"'" in line or "looking for matching `''" in line for line in lines)
    ends_early = re.search(r"unexpected end of file|unexpected EOF|here-document", complaint)
    reason = lines[0].removeprefix("syntax error: ").removeprefix("syntax error ")
    return BashRefusal(f"bash rejects the command: {reason}", bool(ends_early) and not quote)


def find_continuations(texts: Sequence[str], results: Sequence[object]) -> dict[int, Malformed]:
    """Returns a mistake for each line that continues an unfinished command, by the index of the line.

    The lines that would complete an unfinished command are part of the same mistake, so the body of a loop
    never runs as a separate job. texts: the lines without their endings; results: the result for each line,
    which is a Malformed for a mistake.
    """
    found: dict[int, Malformed] = {}
    for index, result in enumerate(results):
        if index in found or not isinstance(result, Malformed) or not result.unfinished:
            continue
        reason = f"this line belongs to line {index + 1}, which is not a complete command"
        for other in range(index + 1, _command_end(texts, index)):
            found[other] = Malformed(reason, result.accepted_form)
    return found


def _command_end(texts: Sequence[str], start: int) -> int:
    """Returns the index after the last line of the command that begins at `start`.

    Returns start + 1 if no line completes the command.
    """
    behind = start
    while behind + 1 < len(texts) and _ends_in_backslash(texts[behind]):
        behind += 1
    if behind > start:
        return behind + 1
    first = texts[start].strip()
    if first.startswith("["):
        # bash would take the attribute block for a command and the rest of the line for its arguments.
        first = first[(find_block_end(first) or 0) + 1 :]
    for last in range(start + 1, min(len(texts), start + 1 + MAX_LINES_AHEAD)):
        text = texts[last].strip()
        if text.startswith("[") or looks_like_csv(text):
            return start + 1
        likely = last == start + 1 or _CLOSES.search(text)
        if likely and is_complete("\n".join([first, *texts[start + 1 : last + 1]])):
            return last + 1
    return start + 1


def _ends_in_backslash(text: str) -> bool:
    bare = text.rstrip(" \t")
    return bare.endswith("\\") and (len(bare) - len(bare.rstrip("\\"))) % 2 == 1


def job_shell(env: Mapping[str, str]) -> JobShell | None:
    """Returns the shell that runs the jobs of a scheduler with this environment.

    Returns None if bash would first source a user's file (BASH_ENV) or if the PATH is unknown. The result
    caches the programs that it has looked up, so create a new one for a later check.
    """
    if env.get("BASH_ENV") or "PATH" not in env:
        return None
    folders = env["PATH"].split(os.pathsep)
    known: dict[tuple[str, str], bool] = {}

    def finds(name: str, cwd: str) -> bool:
        if (name, cwd) not in known:
            paths = (os.path.join(cwd, folder, name) for folder in folders)
            known[name, cwd] = os.path.exists(os.path.join(cwd, name)) or any(map(_is_program, paths))
        return known[name, cwd]

    names = (name.removeprefix(_FUNCTION).removesuffix(_END) for name in env if name.startswith(_FUNCTION))
    return JobShell(finds, frozenset(names))


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
