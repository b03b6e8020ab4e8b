"""Checks what systemd-logind does when a user logs out, and finds Screen sessions of the older scheduler.

With KillUserProcesses, logind ends the processes in the session's scope, even if the user lingers. If the
user lingers, logind keeps the user manager, the processes that the manager started, and the shared memory
that RemoveIPC would delete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

from msgspec import Struct

from gpu_scheduler.attempts.job_logs import user_name
from gpu_scheduler.core.model.finding import Finding, ok, warn
from gpu_scheduler.core.text.formatting import format_duration
from gpu_scheduler.system.procfs import Proc
from gpu_scheduler.system.run_program import run_program

#: Exists if the init system is systemd.
SYSTEMD_RUNTIME = Path("/run/systemd/system")
_FIRST_USER_UID = 1000


class LogindSettings(Struct, frozen=True):
    """The settings of logind for a user.

    kills: whether KillUserProcesses applies to the user; scope: where this process runs: "session" for a
    login session's scope, "manager" for the user manager.
    """

    kills: bool
    removes_ipc: bool
    lingers: bool
    scope: str | None = None


def read_settings(
    user: str, timeout_s: float = 5.0, booted: Path = SYSTEMD_RUNTIME
) -> LogindSettings | str | None:
    """Returns logind's settings, or why they are unknown; None if the init system is not systemd."""
    if not booted.exists():
        return None
    names = ("KillUserProcesses", "RemoveIPC", "KillExcludeUsers", "KillOnlyUsers")
    # Without a user, `show-user` shows logind's own properties.
    result, of_user = (
        run_program(["loginctl", "show-user", *more], timeout_s=timeout_s / 2)
        for more in ([f"--property={name}" for name in names], [user, "--property=Linger"])
    )
    shown = dict(line.split("=", 1) for line in result.output.splitlines() if "=" in line)
    # For a user who is neither logged in nor lingering, it answers with an error.
    failed = result if not {"KillUserProcesses", "RemoveIPC"} <= shown.keys() else of_user
    if failed is result or failed.exit_code is None:
        return f"`loginctl show-user` failed: {failed.failure_reason()}"
    only = shown.get("KillOnlyUsers", "").split()
    return LogindSettings(
        shown["KillUserProcesses"] == "yes"
        and user not in (shown.get("KillExcludeUsers", "").split() or ["root"])
        and (not only or user in only),
        shown["RemoveIPC"] == "yes",
        "Linger=yes" in of_user.output.split(),
        _scope(),
    )


def _scope() -> str | None:
    try:
        text = Path("/proc/self/cgroup").read_text("utf-8", "replace")
    except OSError:
        return None
    if re.search(r"/session-[^/]*\.scope", text):
        return "session"
    return "manager" if re.search(r"/user@[0-9]+\.service", text) else None


def check(settings: LogindSettings | str | None, user: str, uid: int) -> Iterator[Finding]:
    """Yields findings about what this user's logout does to a scheduler started here, and to its jobs.

    settings: as `read_settings` returns them.
    """
    linger = f"sudo loginctl enable-linger {user}"
    start = "start it with `systemd-run --user --scope gpu-scheduler start …`"
    if settings is None:
        yield ok("logind", "not found: processes continue when their user logs out")
        return
    if isinstance(settings, str):
        message = f"unknown, so the scheduler and its jobs may be killed when you log out: {settings}"
        yield warn("logind", message, f"to be safe, {linger}, and {start}")
        return
    if settings.scope == "manager" and settings.lingers:
        yield ok("logind", "Linger=yes: your services continue when you log out")
    elif settings.scope == "manager":
        message = "Linger=no: the processes of your user manager end when you log out"
        yield warn("logind", message, linger)
    elif settings.kills:
        message = "KillUserProcesses=yes: when you log out, the scheduler and its jobs are killed"
        yield warn("logind", message, start if settings.lingers else f"{linger}, and {start}")
    else:
        yield ok("logind", "KillUserProcesses=no, or not for you: processes continue when you log out")
    if uid >= _FIRST_USER_UID and settings.removes_ipc and not settings.lingers:
        message = "RemoveIPC=yes: when you log out, your jobs' shared memory is deleted and data loaders fail"
        yield warn("logind's RemoveIPC", message, linger)
    else:
        yield ok("logind's RemoveIPC", "your shared memory is kept when you log out")


def logout_warning(timeout_s: float) -> str | None:
    """Returns the warning that `start` gives about logging out; None if no problem is known."""
    user = user_name()
    settings = read_settings(user, timeout_s)
    finding = None if isinstance(settings, str) else next(check(settings, user, os.geteuid()))
    return None if finding is None or finding.grade == "ok" else f"{finding.message}; {finding.remedy}"


# Live Screen sessions of the older scheduler, whose jobs are not in a store. The search reads only processes,
# because `screen -ls` misses new sessions and shows dead ones.

_SESSION_NAME = re.compile(r"gpujob_(?P<gpus>[^_]*)_.*")
#: Why the first start is refused while jobs of the older scheduler are running, and the remedy.
REFUSAL = "jobs of the older scheduler are running in Screen; their lines would run a second time here"
REMEDY = (
    "start the scheduler when they have ended, or remove their lines from jobs.txt and add"
    " --ignore-old-sessions"
)


class OldSession(Struct, frozen=True):
    """A live session.

    name: Screen's `PID.NAME`; gpus: the GPUs in that name; started_at: seconds since 1970.
    """

    name: str
    gpus: str
    started_at: float

    def describe(self, now: float) -> str:
        """Describes the session: name, GPUs, age, and the command to open it. now: seconds since 1970."""
        age = format_duration(now - self.started_at)
        gpus = f"GPU{'s' if ',' in self.gpus else ''} {self.gpus}"
        return f"{self.name}, {gpus}, started {age} ago (`screen -r {self.name}` opens it)"


def old_sessions(proc: Proc | None = None) -> list[OldSession]:
    """Returns this user's `gpujob_*` sessions in which commands run but no process has our token."""
    proc = Proc() if proc is None else proc
    found = {}
    for process in proc.processes():
        words = proc.command_line(process.pid)
        name = _session_name(words)
        if name is not None and proc.user_id(process.pid) == os.getuid():
            found[process.pid] = (process, name, words)
    if not found:
        return []
    children: dict[int, list[int]] = {pid: [] for pid in found}
    for process in proc.processes():
        if process.parent in children and not process.ended:
            children[process.parent].append(process.pid)
    return [
        OldSession(f"{pid}.{name[0]}", name["gpus"], proc.started_at(process))
        for pid, (process, name, words) in sorted(found.items())
        if _runs_without_token(proc, children[pid], words)
    ]


def _session_name(words: Sequence[str]) -> re.Match[str] | None:
    """Returns the session name in a Screen server's command line (`SCREEN -dmS NAME …`), or None."""
    if not words or PurePosixPath(words[0]).name != "SCREEN":
        return None
    for option, value in pairwise(words):
        if re.fullmatch(r"-[A-Za-z]*S", option):
            return _SESSION_NAME.fullmatch(value)
    return None


def _runs_without_token(proc: Proc, children: Sequence[int], words: Sequence[str]) -> bool:
    """Returns whether a session's children run commands, and none of them has our token.

    words: the command line of the session process.
    """
    # Until a child executes the window's command, it is a copy of the session process.
    begun = [pid for pid in children if proc.command_line(pid) not in ([], words)]
    return bool(begun) and not any(proc.token(pid) for pid in begun)
