"""Checks that a scheduler still owns its store: same data directory, same database file, same host."""

from __future__ import annotations

import os

from gpu_scheduler.errors import NotOwnerError, SchedulerError
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import InstanceLock


class Tenure:
    """Ownership of an open store whose locks this process holds; once lost, it stays lost."""

    def __init__(self, home: Home, lock: InstanceLock) -> None:
        self._home = home
        self._lock = lock
        self._database = os.stat(home.database)
        self._lost: str | None = None

    def lost(self, *, host: bool = False) -> str | None:
        """Returns why nothing may be written any more, else None. check_host: also check for a takeover."""
        if self._lost is None:
            self._lost = self._replaced()
        if self._lost is None and host:
            try:
                self._home.own()
            except SchedulerError as error:
                self._lost = str(error)
            except OSError:
                pass  # a failed check proves nothing; the state file beside it fails too and is reported
        return self._lost

    def end(self, why: str) -> None:
        """Marks it as lost for this reason."""
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
