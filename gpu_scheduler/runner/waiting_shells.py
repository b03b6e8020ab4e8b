"""Asks the processes of a command to end if the command is a shell that waits for programs.

A shell that gets SIGTERM ends at once and leaves its programs behind, which the kernel then hangs up if they
have a terminal, although they may be saving their work. The programs therefore get the signal first. Until
they have ended, the shells are suspended, so that they do not start the next program. A program that only
reads what another one writes, such as `tee`, gets the signal with the shells: without it, the other program
could not write.
"""

from __future__ import annotations

import os
import time

from . import pending_signals, process_scan

#: The names of programs that are shells.
_SHELLS = frozenset({"bash", "dash", "sh", "zsh", "ksh", "mksh", "fish", "tcsh", "csh", "busybox"})
#: Seconds between two checks whether the programs have ended.
_CHECK_S = 0.05


class WaitingShells:
    """The suspended shells in the process group of a command, whose programs have been asked to end."""

    def __init__(self, group: int, shells: dict[int, int], readers: dict[int, int]) -> None:
        self._group, self._shells, self._readers = group, shells, readers

    def check(self) -> float | None:
        """Returns the seconds until the next check; None if all programs have ended, so that the group may
        be signalled."""
        began = time.monotonic()
        waits = self._shells | self._readers
        if all(pid in waits for pid in process_scan.group_members(self._group)):
            return None
        return max(_CHECK_S, 20 * (time.monotonic() - began))

    def resume(self) -> None:
        """Lets the shells continue."""
        for process in self._shells.items():
            process_scan.send_signal(*process, pending_signals.CONT)


def ask_programs(group: int, number: int) -> WaitingShells | None:
    """Sends a signal to the programs of a group whose leader is a shell, and suspends its shells.

    Returns None, with no shell suspended, if the leader does not wait for a program; the whole group must
    then be signalled.
    """
    members = process_scan.group_members(group)
    parents = {parent for parent, _ in members.values()}
    shells = {pid: ticks for pid, (_, ticks) in members.items() if pid in parents and _is_shell(pid)}
    if group not in shells:
        return None
    for process in shells.items():
        process_scan.send_signal(*process, pending_signals.STOP)
    # A shell may have started another program before it was suspended.
    programs = {
        pid: ticks for pid, (_, ticks) in process_scan.group_members(group).items() if pid not in shells
    }
    readers = _readers_of(programs)
    asked = {pid: ticks for pid, ticks in programs.items() if pid not in readers}
    waiting = WaitingShells(group, shells, readers)
    if not asked:
        waiting.resume()
        return None
    for process in asked.items():
        process_scan.send_signal(*process, number)
        process_scan.send_signal(*process, pending_signals.CONT)
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
