"""Signals the process group of a command where one signal to the group, or to each process, is not enough.

In a fork chain, each process forks the next and ends before a scan of /proc can read it. Such a process can
be found among the newest pids, or signalled through its process group, which the whole chain shares.

A shell that waits for programs and gets SIGTERM ends at once and leaves its programs behind, which the kernel
then hangs up if they have a terminal, although they may be saving their work. The programs therefore get the
signal first. Until they have ended, the shells are suspended, so that they do not start the next program. A
program that only reads what another one writes, such as `tee`, gets the signal with the shells: without it,
the other program could not write.

A runner imports this module, `leftovers` and `process_scan` late, perhaps after a newer version has replaced
the files. They therefore import nothing new from the modules that the runner has already loaded.
"""

from __future__ import annotations

import os
import time

from .folder import fields_of, has_ended
from .process_scan import autogroup, environment, group_members, newest_first, send_signal, token_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator

    from .process_scan import RecordedCommand
else:
    import _signal

#: Maximum number of times to search the newest processes for a member of a group.
_TRIES = 200
#: Seconds within which a fork chain visibly changes its process group.
_CHAIN_S = 0.02
#: The names of programs that are shells.
_SHELLS = frozenset({"bash", "dash", "sh", "zsh", "ksh", "mksh", "fish", "tcsh", "csh", "busybox"})
#: Seconds between two checks whether the programs have ended.
_CHECK_S = 0.05


def has_group(command: RecordedCommand) -> bool:
    """Returns whether the process group of the command has any members, including ended processes."""
    fields = fields_of(command.pid)
    if fields is not None and int(fields[19]) != command.ticks:
        return False
    try:
        os.killpg(command.pid, 0)
    except OSError:
        return False
    return True


def may_have_living_group(command: RecordedCommand) -> bool:
    """Returns whether the command's process group may contain a living process.

    A group exists as long as it contains an ended process that nobody has collected. In a container whose
    first process never collects any, that can be forever. If all members have ended and are still the same
    after a short while, no member is alive, because a fork chain would have added ended processes.
    """
    if not has_group(command):
        return False
    members = _members(command.pid)
    if not members or not all(members.values()):
        return True
    time.sleep(_CHAIN_S)
    return _members(command.pid) != members and has_group(command)


def _members(group: int) -> dict[int, bool]:
    """Returns whether each process in a group, by pid, has ended; False if it disappears while being read."""
    members = {}
    for pid in newest_first():
        try:
            if os.getpgid(pid) != group:
                continue
        except OSError:
            continue
        fields = fields_of(pid)
        members[pid] = fields is not None and has_ended(fields)
    return members


def signal_group(command: RecordedCommand, token: str, signal: int) -> bool:
    """Signals the process group of a command that may have ended; returns whether it sent the signal.

    Meant for members that fork and end too quickly to be signalled one by one. Sends nothing if no member is
    found, if the group id has been reused, or if a member carries the token of another attempt.
    """
    if os.getpgid(0) == command.pid or not has_group(command):
        return False
    if any(
        token_in(environment(pid)) not in (b"", token.encode("ascii"))
        for pid in newest_first()
        if _is_in_group(pid, command)
    ):
        return False
    for _ in range(_TRIES):
        for pid in _youngest():
            if _is_in_group(pid, command) and autogroup(pid) == command.autogroup:
                try:
                    os.killpg(command.pid, signal)
                except OSError:
                    return False
                return True
    return False


def signal_children(signal: int) -> int | None:
    """Signals children of this process that end too quickly for a scan; returns the pid signalled last.

    A child keeps its pid until this process collects it, so the signal cannot reach another process.
    """
    me = os.getpid()
    last_pid = None
    for pid in (*_youngest(), *newest_first()):
        fields = fields_of(pid)
        if fields is not None and int(fields[1]) == me and not has_ended(fields):
            last_pid = pid
            os.kill(pid, signal)
    return last_pid


def _is_in_group(pid: int, command: RecordedCommand) -> bool:
    try:
        return os.getsid(pid) == os.getpgid(pid) == command.pid
    except OSError:
        return False


def _youngest() -> Iterator[int]:
    """Yields the pids that were assigned most recently, even if their processes no longer exist."""
    fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    try:
        last = int(os.read(fd, 256).split()[-1])
    finally:
        os.close(fd)
    return (pid for pid in range(last, last - 4, -1) if pid > 1)


class WaitingShells:
    """The suspended shells in the process group of a command, whose programs have been asked to end."""

    def __init__(self, group: int, shells: dict[int, int], readers: dict[int, int]) -> None:
        self._group, self._shells, self._readers = group, shells, readers

    def check(self) -> float | None:
        """Returns the seconds until the next check; None if all programs have ended, so that the group may
        be signalled."""
        began = time.monotonic()
        waits = self._shells | self._readers
        if all(pid in waits for pid in group_members(self._group)):
            return None
        return max(_CHECK_S, 20 * (time.monotonic() - began))

    def resume(self) -> None:
        """Lets the shells continue."""
        for process in self._shells.items():
            send_signal(*process, _signal.SIGCONT)


def ask_programs(group: int, number: int) -> WaitingShells | None:
    """Sends a signal to the programs of a group whose leader is a shell, and suspends its shells.

    Returns None, with no shell suspended, if the leader does not wait for a program; the whole group must
    then be signalled.
    """
    members = group_members(group)
    parents = {parent for parent, _ in members.values()}
    shells = {pid: ticks for pid, (_, ticks) in members.items() if pid in parents and _is_shell(pid)}
    if group not in shells:
        return None
    for process in shells.items():
        send_signal(*process, _signal.SIGSTOP)
    # A shell may have started another program before it was suspended.
    programs = {pid: ticks for pid, (_, ticks) in group_members(group).items() if pid not in shells}
    readers = _readers_of(programs)
    asked = {pid: ticks for pid, ticks in programs.items() if pid not in readers}
    waiting = WaitingShells(group, shells, readers)
    if not asked:
        waiting.resume()
        return None
    for process in asked.items():
        send_signal(*process, number)
        send_signal(*process, _signal.SIGCONT)
    return waiting


def _is_shell(pid: int) -> bool:
    return os.path.basename(_link(pid, "exe")) in _SHELLS


def _readers_of(programs: dict[int, int]) -> dict[int, int]:
    """Returns the programs that read from a pipe into which another one of them writes."""
    written = {pid: {_link(pid, "fd/1"), _link(pid, "fd/2")} for pid in programs}
    return {
        pid: ticks
        for pid, ticks in programs.items()
        if (pipe := _link(pid, "fd/0")).startswith("pipe:")
        and any(pipe in outputs for other, outputs in written.items() if other != pid)
    }


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
