"""Ends the processes of a command for which one signal is not enough, and those that it left behind.

Processes that are left may have time to end by themselves; then they get SIGTERM and, after a grace, SIGKILL.

If the command was asked to end, as a shell script that runs a training may be, its processes have as long as
the command had, and those that have been asked already are not signalled again. Gives up 5 s after the end of
the command, or 2 s after a later SIGKILL.

This process adopts the command's orphans, so as long as any of them is left, it has a child. A scan can miss
a fork chain, so only two scans in a row that find neither a process nor a child prove that none is left.
"""

from __future__ import annotations

import os
import time

from . import process_scan
from .folder import fields_of, has_children, has_ended, try_read_proc
from .termination import CONT, KILL, STOP, TERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .process_scan import RecordedCommand

_KILL_AFTER_S = 3.0
_GIVE_UP_AFTER_S = 5.0
_GIVE_UP_AFTER_KILL_S = 2.0
#: Seconds between two scans, and between two scans while processes that were asked to end have time.
_RESCAN_S, _ASKED_RESCAN_S = 0.03, 0.2
#: Number of times per step to signal children that are too short-lived for a scan.
_TRIES = 20
#: Options that the shown command line of a process contains, and its maximum length.
_HARMLESS_OPTIONS, _MAX_CHARS = ("-m", "-u"), 60


class Leftovers:
    """The processes that descend from this process or belong to the attempt.

    survivors: the pids of the processes that could not be ended. command: the recorded command, or None if it
    did not record itself. asked_group: the process group that was asked to end; None if none was.
    """

    def __init__(
        self,
        token: str,
        command: RecordedCommand | None,
        grace_s: float,
        ended: float,
        asked_group: int | None = None,
    ) -> None:
        self._token = token
        self._command = command
        self._asked_group = asked_group
        self._kill_at = ended + min(grace_s, _KILL_AFTER_S)
        self._give_up_at = ended + _GIVE_UP_AFTER_S
        self._first_times = self._kill_at, self._give_up_at
        self._terminated: set[tuple[int, int]] = set()
        self._empty_scans = 0
        self._scans_without_pids = 0
        self._last_pid: int | None = None
        self.survivors: list[int] = []
        #: The container client that got SIGKILL; "" if none did.
        self.killed_client = ""

    def any_left(self) -> bool:
        """Returns whether a process is left, without a scan if one is below this process."""
        try:
            return has_children() or bool(self._find())
        except OSError:
            return True  # out of file descriptors or memory

    def signal(self, number: int) -> None:
        """Signals every process that is left."""
        try:
            for process in self._find().items():
                process_scan.send_signal(*process, number)
                process_scan.send_signal(*process, CONT)
        except OSError:
            pass

    def command_lines(self) -> tuple[str, ...]:
        """Returns the command line of each process that is left, up to its first option, the oldest first.

        Options may contain secrets. A process whose command line cannot be read is "?".
        """
        try:
            found = sorted(self._find().items(), key=lambda process: (process[1], process[0]))
            return tuple(_command_line(pid) for pid, _ in found) or ("?",)
        except OSError:
            return ("?",)

    def _find(self) -> dict[int, int]:
        """Returns the start times of the processes that a scan finds, in ticks, by pid."""
        alive = process_scan.descendants(os.getpid()) if has_children() else {}
        alive.update(process_scan.scan({self._token: self._command}).found.get(self._token, {}))
        return alive

    def kill_at(self, deadline: float) -> None:
        """Sets the time of SIGKILL, unless it is earlier than for a command that was not asked to end."""
        kill_at, give_up_at = self._first_times
        self._kill_at = max(kill_at, deadline)
        self._give_up_at = max(give_up_at, self._kill_at + _GIVE_UP_AFTER_KILL_S)

    def step(self, now: float) -> float | None:
        """Scans for the remaining processes and signals them; returns the seconds until the next step.

        Returns None if no process is left or the time is up.
        """
        try:
            return self._step(now)
        except OSError:
            # Continue: the result of the command must be written even if file descriptors have run out.
            return None if now >= self._give_up_at else _RESCAN_S

    def _step(self, now: float) -> float | None:
        children = has_children()
        alive = self._find()
        self._empty_scans = 0 if alive or children else self._empty_scans + 1
        if self._empty_scans:
            return 0.0 if self._empty_scans == 1 else None
        if now >= self._give_up_at:
            self.survivors = sorted(alive) or [pid for pid in (self._last_pid,) if pid is not None]
            return None
        is_chain = children and not any(process_scan.ticks_of(pid) == ticks for pid, ticks in alive.items())
        self._scans_without_pids = self._scans_without_pids + 1 if is_chain else 0
        if now >= self._kill_at and not self.killed_client:
            self.killed_client = process_scan.container_client(alive)
        # Require two scans, because one could run after the last process has ended but before it is
        # collected.
        if self._scans_without_pids > 1 or now >= self._kill_at:
            self._signal_short_lived(KILL if now >= self._kill_at else TERM)
        for process in alive.items():
            if now >= self._kill_at:
                process_scan.send_signal(*process, KILL)
            elif process not in self._terminated:
                self._terminated.add(process)
                if self._asked_group is not None and process_scan.group_of(process[0]) == self._asked_group:
                    continue
                process_scan.send_signal(*process, TERM)
                process_scan.send_signal(*process, CONT)
        # Scans take longer on a machine with many processes. Spend at most a fifth of the time on them.
        is_patient = self._asked_group is not None and now < self._kill_at
        return max(_ASKED_RESCAN_S if is_patient else _RESCAN_S, 4 * (time.monotonic() - now))

    def _signal_short_lived(self, number: int) -> None:
        """Signals children that end before a scan can read them."""
        if self._command is not None:
            signal_group(self._command, self._token, number)
        for _ in range(_TRIES):
            pid = signal_children(number)
            self._last_pid = pid or self._last_pid


def _command_line(pid: int) -> str:
    words = try_read_proc(pid, "cmdline").decode("utf-8", "replace").replace("\0", " ").split()
    shown = [word.rsplit("/", 1)[-1] for word in words[:1]]
    for word in words[1:]:
        if (word.startswith("-") and word not in _HARMLESS_OPTIONS) or "=" in word or "@" in word:
            shown.append("…")
            break
        shown.append(word)
    text = "".join(char if char.isprintable() else "?" for char in " ".join(shown))
    return (text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…") or "?"


# In a fork chain, each process forks the next and ends before a scan of /proc can read it. Such a process can
# be found among the newest pids, or signalled through its process group, which the whole chain shares.

#: Maximum number of times to search the newest processes for a member of a group.
_GROUP_TRIES = 200
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
    for pid in process_scan.newest_first():
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
        process_scan.token_in(process_scan.environment(pid)) not in (b"", token.encode("ascii"))
        for pid in process_scan.newest_first()
        if _is_in_group(pid, command)
    ):
        return False
    for _ in range(_GROUP_TRIES):
        for pid in _youngest():
            if _is_in_group(pid, command) and process_scan.autogroup(pid) == command.autogroup:
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
    for pid in (*_youngest(), *process_scan.newest_first()):
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
    """The suspended shells in the process group of a command, whose programs have been asked to end.

    A shell that waits for programs and gets SIGTERM ends at once and leaves its programs behind, which the
    kernel then hangs up if they have a terminal, although they may be saving their work. The programs
    therefore get the signal first. Until they have ended, the shells are suspended, so that they do not start
    the next program. A program that only reads what another one writes, such as `tee`, gets the signal with
    the shells: without it, the other program could not write.
    """

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
            process_scan.send_signal(*process, CONT)


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
        process_scan.send_signal(*process, STOP)
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
        process_scan.send_signal(*process, CONT)
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
