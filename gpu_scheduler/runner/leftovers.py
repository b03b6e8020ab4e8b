"""Ends the processes that a command left behind: SIGTERM, a grace period, SIGKILL; at most 5 s in all.

This process adopts the command's orphans, so it has a child as long as anything is left. An empty scan counts
only if two scans in a row find no child either, because no scan sees a fork chain.
"""

from __future__ import annotations

import os
import time

from . import chains, signals, tree
from .child import has_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .membership import Command

_KILL_AFTER_S = 3.0
_GIVE_UP_AFTER_S = 5.0
_LOOK_AGAIN_S = 0.03
#: Number of times per step that children which no scan sees are signalled.
_HUNTS = 20


class Leftovers:
    """The processes that descend from this one or belong to the attempt.

    survivors: the pids that are left at the end. command: None if the command did not record itself.
    """

    def __init__(self, token: str, command: Command | None, grace_s: float, ended: float) -> None:
        self._token = token
        self._command = command
        self._kill_at = ended + min(grace_s, _KILL_AFTER_S)
        self._give_up_at = ended + _GIVE_UP_AFTER_S
        self._told: set[tuple[int, int]] = set()
        self._empty = 0
        self._fleeting = 0
        self._seen: int | None = None
        self.survivors: list[int] = []

    def turn(self, now: float) -> float | None:
        """Scans and signals what is left; returns the seconds until the next step.

        Returns None when nothing is left or the time is up.
        """
        try:
            return self._turn(now)
        except OSError:
            # Running out of file descriptors must not lose the result of the command.
            return None if now >= self._give_up_at else _LOOK_AGAIN_S

    def _turn(self, now: float) -> float | None:
        children = has_children()
        alive = tree.descendants(os.getpid()) if children else {}
        alive.update(tree.scan({self._token: self._command}).found.get(self._token, {}))
        self._empty = 0 if alive or children else self._empty + 1
        if self._empty:
            return 0.0 if self._empty == 1 else None
        if now >= self._give_up_at:
            self.survivors = sorted(alive) or [pid for pid in (self._seen,) if pid is not None]
            return None
        self._fleeting = self._fleeting + 1 if children and not _any_lives(alive) else 0
        # A single scan may fall between the end of the last process and its collection.
        if self._fleeting > 1 or now >= self._kill_at:
            self._hunt(signals.KILL if now >= self._kill_at else signals.TERM)
        for process in alive.items():
            if now >= self._kill_at:
                tree.send(*process, signals.KILL)
            elif process not in self._told:
                self._told.add(process)
                tree.send(*process, signals.TERM)
                tree.send(*process, signals.CONT)
        # A scan takes longer on a machine with many processes: spend at most a fifth of the time on it.
        return max(_LOOK_AGAIN_S, 4 * (time.monotonic() - now))

    def _hunt(self, number: int) -> None:
        """Signals children that end before a scan reaches them."""
        if self._command is not None:
            chains.send_group(self._command, self._token, number)
        for _ in range(_HUNTS):
            pid = chains.send_children(number)
            self._seen = pid or self._seen


def _any_lives(processes: dict[int, int]) -> bool:
    return any(tree.ticks_of(pid) == ticks for pid, ticks in processes.items())
