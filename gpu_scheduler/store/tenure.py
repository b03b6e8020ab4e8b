"""Whether a record is still that of the scheduler that opened it: the same file, and this host's."""

from __future__ import annotations

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.home import Home


class Tenure:
    """Begins with an open record of this host. Once lost, it is never held again."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._inode = home.database.stat().st_ino
        self._lost: str | None = None

    def lost(self, *, host: bool = False) -> str | None:
        """Why nothing may be written any more; None: it may. host: look whether another one took over."""
        if self._lost is None and not self._is_there():
            self._lost = f"{self._home.database} was removed or replaced"
        if self._lost is None and host:
            try:
                self._home.own()
            except SchedulerError as error:
                self._lost = str(error)
            except OSError:
                pass  # nothing follows from a look that failed; the state file, beside it, tells why
        return self._lost

    def _is_there(self) -> bool:
        try:
            return self._home.database.stat().st_ino == self._inode
        except OSError:
            return False
