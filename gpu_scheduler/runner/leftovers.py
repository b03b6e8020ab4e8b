"""Waits for the processes that a command left behind, or ends them: SIGTERM and, after a grace, SIGKILL.

If the command was asked to end, as a shell script that runs a training may be, its processes have as long as
the command had, and those that have been asked already are not signalled again. Gives up 5 s after the end of
the command, or 2 s after a later SIGKILL.

This process adopts the command's orphans, so as long as any of them is left, it has a child. A scan can miss
a fork chain, so only two scans in a row that find neither a process nor a child prove that none is left.
"""

from __future__ import annotations

import os
import time

from . import group_signals, process_scan
from .child import has_children
from .folder import try_read_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from .process_scan import RecordedCommand
else:
    import _signal

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
                process_scan.send_signal(*process, _signal.SIGCONT)
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
            self._signal_short_lived(_signal.SIGKILL if now >= self._kill_at else _signal.SIGTERM)
        for process in alive.items():
            if now >= self._kill_at:
                process_scan.send_signal(*process, _signal.SIGKILL)
            elif process not in self._terminated:
                self._terminated.add(process)
                if self._asked_group is not None and process_scan.group_of(process[0]) == self._asked_group:
                    continue
                process_scan.send_signal(*process, _signal.SIGTERM)
                process_scan.send_signal(*process, _signal.SIGCONT)
        # Scans take longer on a machine with many processes. Spend at most a fifth of the time on them.
        is_patient = self._asked_group is not None and now < self._kill_at
        return max(_ASKED_RESCAN_S if is_patient else _RESCAN_S, 4 * (time.monotonic() - now))

    def _signal_short_lived(self, number: int) -> None:
        """Signals children that end before a scan can read them."""
        if self._command is not None:
            group_signals.signal_group(self._command, self._token, number)
        for _ in range(_TRIES):
            pid = group_signals.signal_children(number)
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
