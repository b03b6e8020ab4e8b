"""Checks what systemd-logind is configured to do to processes when their user logs out.

With KillUserProcesses, logind ends the processes in the session's scope, even if the user lingers. If the
user lingers, logind keeps the user manager, the processes that the manager started, and the shared memory
that RemoveIPC would delete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_scheduler.attempts.job_logs import user_name
from gpu_scheduler.core.model.finding import Check, Finding, ok, warn
from gpu_scheduler.system.run_program import run_program

#: Folders with logind's configuration. A later folder overrides the earlier ones.
_CONFIG_FOLDERS = ("/usr/lib/systemd", "/run/systemd", "/etc/systemd")
#: Exists if the init system is systemd.
SYSTEMD_RUNTIME = Path("/run/systemd/system")
_LINGERING = Path("/var/lib/systemd/linger")
_FIRST_USER_UID = 1000
_SETTING = re.compile(r"^[ \t]*(?:(#)[ \t]*)?([A-Za-z]+)[ \t]*=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class LogindSettings:
    """The settings of logind; None means unknown.

    scope: where this process runs: "session" for a login session's scope, "manager" for the user manager.
    """

    kills_user_processes: bool | None = None
    removes_ipc: bool | None = None
    lingers: bool | None = None
    kill_excluded_users: tuple[str, ...] = ("root",)
    kill_only_users: tuple[str, ...] = ()
    scope: str | None = None


def read_settings(user: str, timeout_s: float = 5.0, booted: Path = SYSTEMD_RUNTIME) -> LogindSettings | None:
    """Returns logind's settings from its service or, failing that, from its files; None if neither exists."""
    if not booted.exists():
        return None
    names = ("KillUserProcesses", "RemoveIPC", "KillExcludeUsers", "KillOnlyUsers")
    where = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
    properties = run_program(["busctl", "get-property", *where, *names], timeout_s=timeout_s / 2)
    answered = _parse_busctl(properties.output) if properties.succeeded else None
    found = answered or _parse_config(_config_texts())
    if found is None:
        return None
    lingers: bool | None = (_LINGERING / user).exists()
    if answered is not None:
        shown = run_program(["loginctl", "show-user", user, "-p", "Linger"], timeout_s=timeout_s / 2)
        known = re.search(r"^Linger=(yes|no)$", shown.output, re.MULTILINE)
        lingers = known[1] == "yes" if known else lingers
    return replace(found, lingers=lingers, scope=_scope())


def _parse_busctl(text: str) -> LogindSettings | None:
    """Parses the output of busctl, which has one line per property, such as `b true` or `as 1 "root"`."""
    lines = text.strip().splitlines()
    if len(lines) != 4:
        return None
    kills, removes = ({"b true": True, "b false": False}.get(line.strip()) for line in lines[:2])
    excluded, only = (tuple(re.findall(r'"([^"]*)"', line)) for line in lines[2:])
    return LogindSettings(kills, removes, kill_excluded_users=excluded, kill_only_users=only)


def _config_texts() -> Iterator[str]:
    for folder in map(Path, _CONFIG_FOLDERS):
        for path in (folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))):
            try:
                yield path.read_text("utf-8", "replace")
            except OSError:
                continue


def _parse_config(texts: Iterable[str]) -> LogindSettings | None:
    """Parses logind's configuration files. A commented-out setting shows the built-in default."""
    built: dict[str, str] = {}
    assigned: dict[str, str] = {}
    for text in texts:
        for mark, key, value in _SETTING.findall(text):
            (built if mark else assigned)[key] = value.strip()
    values = built | assigned
    if not values:
        return None
    words = {True: ("yes", "true", "1", "on"), False: ("no", "false", "0", "off")}

    def flag(key: str) -> bool | None:
        value = values.get(key, "").lower()
        return next((truth for truth, spelled in words.items() if value in spelled), None)

    excluded = tuple(values.get("KillExcludeUsers", "root").split())
    only = tuple(values.get("KillOnlyUsers", "").split())
    return LogindSettings(
        flag("KillUserProcesses"), flag("RemoveIPC"), kill_excluded_users=excluded, kill_only_users=only
    )


def _scope() -> str | None:
    try:
        text = Path("/proc/self/cgroup").read_text("utf-8", "replace")
    except OSError:
        return None
    if re.search(r"/session-[^/]*\.scope", text):
        return "session"
    return "manager" if re.search(r"/user@[0-9]+\.service", text) else None


def check(settings: LogindSettings | None, user: str, uid: int) -> Iterator[Finding]:
    """Yields findings about what this user's logout does to a scheduler started here, and to its jobs."""
    if settings is None:
        yield ok(Check.LOGIND, "not found: processes continue when their user logs out")
        return
    linger = f"sudo loginctl enable-linger {user}"
    # An unknown value counts as yes, systemd's default.
    kills = (
        settings.kills_user_processes is not False
        and user not in settings.kill_excluded_users
        and (not settings.kill_only_users or user in settings.kill_only_users)
    )
    if settings.scope == "manager" and settings.lingers:
        yield ok(Check.LOGIND, "Linger=yes: your services continue when you log out")
    elif settings.scope == "manager":
        message = "Linger=no: the processes of your user manager end when you log out"
        yield warn(Check.LOGIND, message, linger)
    elif kills:
        message = "KillUserProcesses=yes: when you log out, the scheduler and its jobs are killed"
        if settings.kills_user_processes is None:
            message = "KillUserProcesses unknown: the scheduler and its jobs may be killed when you log out"
        start = "start it with `systemd-run --user --scope gpu-scheduler start …`"
        yield warn(Check.LOGIND, message, start if settings.lingers else f"{linger}, and {start}")
    else:
        effects = {None: " does not apply to you", False: "=no", True: "=yes, but not for you"}
        value = effects[settings.kills_user_processes]
        yield ok(Check.LOGIND, f"KillUserProcesses{value}: processes continue when you log out")
    if uid >= _FIRST_USER_UID and settings.removes_ipc is not False and not settings.lingers:
        # An unknown value counts as yes, systemd's default.
        message = "RemoveIPC=yes: when you log out, your jobs' shared memory is deleted and data loaders fail"
        yield warn(Check.REMOVE_IPC, message, linger)
    else:
        yield ok(Check.REMOVE_IPC, "your shared memory is kept when you log out")


def logout_warning(timeout_s: float) -> str | None:
    """Returns the warning that `start` gives about logging out; None if no problem is known."""
    user = user_name()
    finding = next(iter(check(read_settings(user, timeout_s), user, os.geteuid())))
    return None if finding.grade == "ok" else f"{finding.message}; {finding.remedy}"
