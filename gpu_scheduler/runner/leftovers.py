"""What a command left behind when it ended: SIGTERM, a grace, SIGKILL, and no more than 5 s in all."""

from __future__ import annotations

import os
import time

from . import signals, tree
from .child import has_children

_KILL_AFTER_S = 3.0
_GIVE_UP_AFTER_S = 5.0
_LOOK_AGAIN_S = 0.03


class Leftovers:
    """Processes that descend from this one or carry the attempt's token. `survivors` is set at the end."""

    def __init__(self, token: str, grace_s: float, ended: float) -> None:
        self._token = token
        self._kill_at = ended + min(grace_s, _KILL_AFTER_S)
        self._give_up_at = ended + _GIVE_UP_AFTER_S
        self._told: set[tuple[int, int]] = set()
        self.survivors: list[int] = []

    def turn(self, now: float) -> float | None:
        """Look, and signal what is left. Seconds until the next look; None = nothing left, or time is up."""
        try:
            alive = tree.descendants(os.getpid()) if has_children() else {}
            alive.update(tree.carriers((self._token,)).get(self._token, {}))
        except OSError:
            # A shortage of open files must not cost the command its result.
            return None if now >= self._give_up_at else _LOOK_AGAIN_S
        if not alive:
            return None
        if now >= self._give_up_at:
            self.survivors = sorted(alive)
            return None
        for process in alive.items():
            if now >= self._kill_at:
                tree.send(*process, signals.KILL)
            elif process not in self._told:
                self._told.add(process)
                tree.send(*process, signals.TERM)
                tree.send(*process, signals.CONT)
        # A look costs by the number of processes on the machine: never spend most of the time on it.
        return max(_LOOK_AGAIN_S, 4 * (time.monotonic() - now))
