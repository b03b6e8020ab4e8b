"""Checks what systemd-logind does to processes when their user logs out.

KillUserProcesses ends the processes in the session's scope, with or without lingering. Lingering keeps the
user's manager with the processes started in it, and the shared memory that RemoveIPC would delete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_scheduler.asking import ask
from gpu_scheduler.doctor.findings import Finding, ok, warn
from gpu_scheduler.joblogs import user_name

#: Folders of logind's configuration; later ones override earlier ones.
_CONFIGURED = ("/usr/lib/systemd", "/run/systemd", "/etc/systemd")
#: Exists if systemd runs the machine.
BOOTED = Path("/run/systemd/system")
_LINGERING = Path("/var/lib/systemd/linger")
_SYSTEM_UIDS = 1000
_SETTING = re.compile(r"^[ \t]*(#?)[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Logind:
    """Settings of logind; None: unknown. scope: this process's, "session", "manager" (the user's) or None."""

    kills: bool | None = None
    removes_ipc: bool | None = None
    lingers: bool | None = None
    excluded: tuple[str, ...] = ("root",)
    only: tuple[str, ...] = ()
    scope: str | None = None


def read(user: str, timeout_s: float = 5.0, booted: Path = BOOTED) -> Logind | None:
    """Returns logind's settings from its service, else from its files; None if neither exists."""
    if not booted.exists():
        return None
    names = ("KillUserProcesses", "RemoveIPC", "KillExcludeUsers", "KillOnlyUsers")
    where = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
    properties = ask(["busctl", "get-property", *where, *names], timeout_s=timeout_s / 2)
    answered = _answered(properties.text) if properties.good else None
    found = answered or _configured(_files())
    if found is None:
        return None
    lingers: bool | None = (_LINGERING / user).exists()
    if answered is not None:
        shown = ask(["loginctl", "show-user", user, "-p", "Linger"], timeout_s=timeout_s / 2)
        known = re.search(r"^Linger=(yes|no)$", shown.text, re.MULTILINE)
        lingers = known[1] == "yes" if known else lingers
    return replace(found, lingers=lingers, scope=_scope())


def _answered(text: str) -> Logind | None:
    """Parses the output of busctl, one line per property in the order asked (`b true`, `as 1 "root"`)."""
    lines = text.strip().splitlines()
    if len(lines) != 4:
        return None
    kills, removes = ({"b true": True, "b false": False}.get(line.strip()) for line in lines[:2])
    excluded, only = (tuple(re.findall(r'"([^"]*)"', line)) for line in lines[2:])
    return Logind(kills, removes, excluded=excluded, only=only)


def _files() -> Iterator[str]:
    for folder in map(Path, _CONFIGURED):
        for path in (folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))):
            try:
                yield path.read_text("utf-8", "replace")
            except OSError:
                continue


def _configured(texts: Iterable[str]) -> Logind | None:
    """Parses logind's configuration files; their comments show the built-in defaults."""
    built: dict[str, str] = {}
    assigned: dict[str, str] = {}
    for text in texts:
        for mark, key, value in _SETTING.findall(text):
            (built if mark else assigned)[key] = value
    values = built | assigned
    if not values:
        return None
    words = {True: ("yes", "true", "1", "on"), False: ("no", "false", "0", "off")}

    def flag(key: str) -> bool | None:
        value = values.get(key, "").lower()
        return next((truth for truth, spelled in words.items() if value in spelled), None)

    excluded = tuple(values.get("KillExcludeUsers", "root").split())
    only = tuple(values.get("KillOnlyUsers", "").split())
    return Logind(flag("KillUserProcesses"), flag("RemoveIPC"), excluded=excluded, only=only)


def _scope() -> str | None:
    try:
        text = Path("/proc/self/cgroup").read_text("utf-8", "replace")
    except OSError:
        return None
    if re.search(r"/session-[^/]*\.scope", text):
        return "session"
    return "manager" if re.search(r"/user@[0-9]+\.service", text) else None


def judge(found: Logind | None, user: str, uid: int) -> Iterator[Finding]:
    """Yields the effect of a logout on a scheduler that this user starts here, and on its jobs."""
    if found is None:
        yield ok("logind", "not found: processes survive the logout of their user")
        return
    linger = f"sudo loginctl enable-linger {user}"
    kills = found.kills and user not in found.excluded and (not found.only or user in found.only)
    if kills and found.scope == "manager":
        yield _kept(found, linger)
    elif kills:
        says = "KillUserProcesses=yes: when you log out, the scheduler and its jobs are killed"
        start = "start it with `systemd-run --user --scope gpu-scheduler start …`"
        yield warn("logind", says, start if found.lingers else f"{linger}, and {start}")
    elif found.scope == "manager":
        yield _kept(found, linger)
    else:
        value = {None: " unknown", False: "=no", True: "=yes, but not for you"}[found.kills]
        yield ok("logind", f"KillUserProcesses{value}: processes survive the session")
    if uid >= _SYSTEM_UIDS and found.removes_ipc is not False and not found.lingers:
        # An unknown value counts as yes, systemd's default.
        says = "RemoveIPC=yes: when you log out, your jobs' shared memory is deleted (data loaders fail)"
        yield warn("logind's RemoveIPC", says, linger)
    else:
        yield ok("logind's RemoveIPC", "your shared memory is kept when you log out")


def _kept(found: Logind, linger: str) -> Finding:
    if found.lingers:
        return ok("logind", "Linger=yes: your services continue when you log out")
    return warn("logind", "Linger=no: the processes of your user manager end when you log out", linger)


def warning(timeout_s: float) -> str | None:
    """Returns the warning of `start` about logging out, with the remedy; None if all is well or unknown."""
    user = user_name()
    finding = next(iter(judge(read(user, timeout_s), user, os.geteuid())))
    return None if finding.grade == "ok" else f"{finding.says}; {finding.remedy}"
