"""The texts of a systemd unit, of its file of variables and of a crontab line.

systemd.syntax(7), systemd.service(5) and systemd.exec(5) define the quoting. Nothing here touches a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from gpu_scheduler.errors import UsageError

_SETTINGS = """\
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
KillMode=process
OOMPolicy=continue
TimeoutStopSec=30
"""
#: Characters with a meaning in a quoted word of a unit, and their escapes.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "%": "%%", "\n": "\\n", "\t": "\\t"}
_PLAIN = {escape: character for character, escape in _ESCAPES.items()}
#: The longest command that cron accepts, in bytes.
_MAX_CRON = 998
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Unit(Struct, frozen=True):
    """A unit that runs a scheduler.

    state_file: its real path. folder: the working folder. program: the words that run the command line, with
    the absolute path of the interpreter first. words: the options of `start`. path: the variable PATH.
    variables_file: a file with more variables. user: the account of a unit of the system; None for a unit of
    the user's own manager. lingers: whether `install` has switched lingering on. version: of this program.
    """

    state_file: str
    folder: str
    program: tuple[str, ...]
    words: tuple[str, ...]
    path: str
    variables_file: str
    user: str | None = None
    lingers: bool = False
    version: str = ""

    @property
    def name(self) -> str:
        """The name of the unit, which differs for each state file."""
        return unit_name(self.state_file)


def unit_name(state_file: str) -> str:
    """Returns the name of the unit for a state file."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(state_file))).hexdigest()
    return f"gpu-scheduler-{digest[:8]}.service"


def unit_text(unit: Unit) -> str:
    """Returns the text of a unit. Raises UsageError for a value that a unit cannot contain."""
    words = [
        _quoted("a path", unit.program[0]),
        *(_word(one) for one in (*unit.program[1:], "start", *unit.words)),
    ]
    _checked("the path", unit.program[0], "\n\t\"'\\$")  # which systemd does not allow there
    target = "default.target" if unit.user is None else "multi-user.target"
    return (
        f"[Unit]\nDescription=GPU Job Scheduler of {_raw(unit.state_file)}\nStartLimitIntervalSec=0\n"
        f"\n[Service]\nType=exec\nWorkingDirectory={_raw(unit.folder)}\n"
        f"Environment={_quoted('PATH', f'PATH={unit.path}')}\n"
        f"EnvironmentFile={_file(unit.variables_file)}\nExecStart={' '.join(words)}\n{_SETTINGS}"
        + ("" if unit.user is None else f"User={unit.user}\n")
        + f"\n[Install]\nWantedBy={target}\n"
        f"\n[X-GPU-Scheduler]\nVersion={unit.version}\nProgramWords={len(unit.program)}\n"
        f"Lingers={'yes' if unit.lingers else 'no'}\n"
    )


def read_unit(text: str) -> Unit | None:
    """Returns the unit with a text that `unit_text` has made; None for any other text."""
    lines = (line.split("=", 1) for line in text.split("\n") if "=" in line)
    # Users may have added variables.
    found = {key: value for key, value in lines if key != "Environment" or value.startswith('"PATH=')}
    try:
        words = [_plain(one).replace("$$", "$") for one in _WORD.findall(found["ExecStart"])]
        count = int(found["ProgramWords"])
        [path] = _WORD.findall(found["Environment"])
        return Unit(
            found["Description"].removeprefix("GPU Job Scheduler of ").replace("%%", "%"),
            found["WorkingDirectory"].replace("%%", "%"), tuple(words[:count]), tuple(words[count + 1 :]),
            _plain(path).removeprefix("PATH="), found["EnvironmentFile"].replace("%%", "%"),
            found.get("User"), found["Lingers"] == "yes", found["Version"],
        )  # fmt: skip
    except (KeyError, ValueError):
        return None


def _checked(what: str, text: str, refused: str) -> str:
    """Returns a text. Raises UsageError if it has a control character but \\n and \\t, or a refused one."""
    for one in text:
        if (
            one in refused
            or (ord(one) < 32 and one not in "\n\t")
            or one == "\x7f"
            or 0xD800 <= ord(one) < 0xE000
        ):
            raise UsageError(f"a unit cannot contain {what} {text!r}, because of its {one!r}")
    return text


def _quoted(what: str, text: str) -> str:
    return '"' + "".join(_ESCAPES.get(one, one) for one in _checked(what, text, "")) + '"'


def _plain(quoted: str) -> str:
    return re.sub(r"\\.|%%", lambda found: _PLAIN.get(found[0], found[0]), quoted)


def _word(text: str) -> str:
    return _quoted("the option", text).replace("$", "$$")


def _raw(path: str) -> str:
    """Returns a path as the whole value of a setting, which has no quotes."""
    _checked("the path", path, "\n\t")
    if path != path.strip() or path.endswith("\\"):
        raise UsageError(f"a unit cannot contain the path {path!r}, because of its last or first character")
    return path.replace("%", "%%")


def _file(path: str) -> str:
    _checked("the path", path, "*?[\\")  # systemd takes them for a pattern
    return _raw(path)


def variables_text(variables: Mapping[str, str]) -> str:
    """Returns a file of variables, which systemd and a shell read alike.

    Raises UsageError for a value that it cannot contain.
    """
    lines = []
    for name, value in variables.items():
        escaped = re.sub(r'(["\\`$])', r"\\\1", _checked(f"the variable {name} with", value, ""))
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def cron_line(unit: Unit) -> str:
    """Returns the line of a crontab that starts the scheduler at boot. PATH is among its variables.

    Raises UsageError for a value that such a line cannot contain.
    """
    words = [*unit.program, "start", "--daemon", *unit.words]
    command = (
        f"cd {shlex.quote(unit.folder)} && set -a && . {shlex.quote(unit.variables_file)} &&"
        f" {shlex.join(words)} >/dev/null 2>&1"
    )
    for one in "\n\r\\":
        if one in command:
            raise UsageError(f"a crontab cannot contain a path or an option with {one!r}")
    command = command.replace("%", "\\%")
    if len(os.fsencode(command)) > _MAX_CRON:
        raise UsageError(f"a command in a crontab may have at most {_MAX_CRON} bytes; use shorter paths")
    return f"@reboot {command}"


def with_cron_line(table: str, name: str, line: str | None) -> str:
    """Returns a crontab with a line between two marks in place of the one that it has; None removes it.

    All other lines stay. Raises UsageError if only one of the marks is there.
    """
    begin, end = f"# {name}: begin\n", f"# {name}: end\n"
    lines = re.findall(r"[^\n]*\n|[^\n]+", table)
    before, after = lines, list[str]()
    if begin in lines:
        at = lines.index(begin)
        if end not in lines[at:]:
            text = f"`{begin.strip()}` without `{end.strip()}`"
            raise UsageError(f"the crontab has {text}; remove that line with `crontab -e`")
        before, after = lines[:at], lines[lines.index(end, at) + 1 :]
    if line is None:
        return "".join([*before, *after])
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, begin, f"{line}\n", end, *after])
