"""The words of `service`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.core.text.formatting import pid_text

if TYPE_CHECKING:
    from gpu_scheduler.unit.service import Installed, UnitState
    from gpu_scheduler.unit.unit_file import Unit

#: The meaning of an exit code of the scheduler, as in docs/running.md.
_EXIT_CODES = {"0": "it was stopped", "1": "an error, which the log names", "2": "wrong options"}


def difference_text(old: str, new: str) -> str:
    """Returns the lines that differ between two texts of a unit."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "installed", "new", lineterm="", n=0)
    return "\n".join(lines)


def installed_text(done: Installed) -> str:
    """Formats the result of `service install`."""
    runs = "runs, and starts at every boot" if done.has_changed else "is already running with these options"
    if done.lingers is not False:
        return f"{done.unit.name} {runs}"
    return (
        f"{done.unit.name} runs\nlingering is off ({done.linger_problem}): until an administrator runs"
        f" `sudo loginctl enable-linger {done.user}`, the scheduler and its jobs end when you log out, and"
        " nothing starts at boot"
    )


def state_text(unit: Unit, state: UnitState, problems: Sequence[str]) -> str:
    """Formats the state of an installed unit, one fact per line."""
    shown, runs = state.properties, state.properties.get("ActiveState", "unknown")
    if state.pid:
        runs = f"running, {pid_text(state.pid)}, since {shown.get('ActiveEnterTimestamp', '?')}"
    elif shown.get("ExecMainCode") == "1":
        code = shown.get("ExecMainStatus", "?")
        runs += f", last exit code {code}{f' ({_EXIT_CODES[code]})' if code in _EXIT_CODES else ''}"
    elif shown.get("ExecMainCode") in ("2", "3"):
        runs += f", ended by signal {shown.get('ExecMainStatus', '?')}"
    lines = [
        f"unit       {unit.name}, of {unit.state_file}",
        f"enabled    {shown.get('UnitFileState') or 'unknown'}",
        f"state      {runs}",
    ]
    if unit.user is None:
        words = {True: "on: it also runs without a login", False: "off: it ends when you log out"}
        lines.append(f"lingering  {'unknown' if state.lingers is None else words[state.lingers]}")
    lines += [f"problem    {one}" for one in problems]
    return "\n".join([*lines, *(f"log        {line}" for line in state.log)])


def cron_state_text(pid: int | None) -> str:
    """Formats the state of a scheduler that cron starts. pid: None if it does not run."""
    runs = "not running; `start --daemon` starts it now" if pid is None else "running"
    return f"installed in the crontab, {runs}{'' if pid is None else f', {pid_text(pid)}'}"


def removed_text(name: str, *, is_cron: bool) -> str:
    """Formats the result of `service uninstall`."""
    if is_cron:
        return "the crontab no longer has the line; a running scheduler goes on, and `stop` ends it"
    return f"{name} was removed; running jobs go on: `status` shows them, and `stop --jobs` ends them"


def cron_text(line: str, *, has_changed: bool) -> str:
    """Formats the result of `service install --cron`."""
    does = "has this line now; it works from the next boot on" if has_changed else "has this line already"
    return f"the crontab {does}:\n{line}"


def no_systemd_text(line: str) -> str:
    """Formats why there is no unit on a machine without systemd, and what to do."""
    return (
        "systemd does not manage this machine, so there is no unit; `service install --cron` adds this line"
        f" to the crontab:\n{line}"
    )
