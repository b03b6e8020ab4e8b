"""Tells a scheduler whether the record is still its own: the same folder, the same file, and this host's."""

from __future__ import annotations

import os

from gpu_scheduler.errors import NotOwnerError, SchedulerError
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import InstanceLock


class Tenure:
    """Begins with an open record of this host, whose locks this process holds. Once lost, it is never held
    again."""

    def __init__(self, home: Home, lock: InstanceLock) -> None:
        self._home = home
        self._lock = lock
        self._database = os.stat(home.database)
        self._lost: str | None = None

    def lost(self, *, host: bool = False) -> str | None:
        """Why nothing may be written any more; None: it may. host: look whether another one took over."""
        if self._lost is None:
            self._lost = self._replaced()
        if self._lost is None and host:
            try:
                self._home.own()
            except SchedulerError as error:
                self._lost = str(error)
            except OSError:
                pass  # nothing follows from a look that failed; the state file, beside it, tells why
        return self._lost

    def end(self, why: str) -> None:
        """Lose it for this reason."""
        self._lost = self._lost or why

    def check(self, *, host: bool = False) -> None:
        """Raises NotOwnerError if it is lost."""
        lost = self.lost(host=host)
        if lost is not None:
            raise NotOwnerError(lost)

    def _replaced(self) -> str | None:
        if not self._lock.is_of(self._home.folder):
            return f"{self._home.folder} was removed or replaced"
        if not self._lock.keep():
            return f"another scheduler holds {self._home.lock}, which was removed or replaced"
        try:
            same = os.path.samestat(os.stat(self._home.database), self._database)
        except OSError:
            same = False
        return None if same else f"{self._home.database} was removed or replaced"
