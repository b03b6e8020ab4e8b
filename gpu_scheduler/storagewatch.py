"""The scheduler's look at the places that it writes to: what keeps it from starting anything, told once."""

from __future__ import annotations

import errno
import logging

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.storage import troubles
from gpu_scheduler.store.home import Home

log = logging.getLogger(__name__)

#: The least seconds between two looks; the loop wants one a second while there is a trouble.
LOOK_EVERY_S = 0.5
#: A launch that fails with one of these failed for the storage's sake, whatever the next look finds.
_BLAMED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class StorageWatch:
    """Looks at most twice a second, and says once when a trouble comes and when it is over."""

    def __init__(self, home: Home, logs: LogFolder, clock: Clock) -> None:
        self._home = home
        self._logs = logs
        self._clock = clock
        self._look_at = float("-inf")
        self._stops: str | None = None
        self._told: frozenset[Trouble] = frozenset()

    def trouble(self, *, at_once: bool = False) -> str | None:
        """Why nothing new can be started now, None: it can; at_once: by a fresh look."""
        now = self._clock.now().boot
        if at_once or now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            found = troubles(self._home, self._logs)
            self._stops = next((str(trouble) for trouble in found if trouble.stops), None)
            self._tell(frozenset(found))
        return self._stops

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Whether a launch failed with this error for the storage's sake; nothing is launched for a while."""
        if not isinstance(error, OSError):
            return False
        if self.trouble(at_once=True) is None and error.errno in _BLAMED:
            where = f"{error.filename}: " if error.filename else ""
            self._stops = f"{where}{error.strerror}: free space there"
        return self._stops is not None

    def _tell(self, found: frozenset[Trouble]) -> None:
        for trouble in sorted(found - self._told, key=str):
            if trouble.stops:
                log.error("%s; until then nothing new is started, running jobs go on", trouble)
            else:
                log.warning("%s", trouble)
        for trouble in sorted(self._told - found, key=str):
            log.info("%s %s can be used again", trouble.what, trouble.path)
        self._told = found
