"""The scheduler's look at the places that it writes to: what keeps it from starting anything, told once.

A launch may fail for what no look finds missing: the quota of a project, or a shortage of processes, memory
or open files. Then nothing is started for a while, which doubles while that goes on.
"""

from __future__ import annotations

import errno
import logging
import os

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.runner.shortage import start_error
from gpu_scheduler.shortages import NEEDED, described, shortage_of
from gpu_scheduler.storage import troubles
from gpu_scheduler.store.home import Home

log = logging.getLogger(__name__)

#: The least seconds between two looks; the loop wants one a second while there is a trouble.
LOOK_EVERY_S = 0.5
#: Seconds without a launch after one that failed so, the first time and at most.
BLAME_S, LONGEST_BLAME_S = 0.5, 30.0
#: A launch that fails with one of these failed for the storage's sake, whatever the next look finds.
_BLAMED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class StorageWatch:
    """Looks at most twice a second, and says once when a trouble comes and when it is over. trust: as in
    `troubles`."""

    def __init__(self, home: Home, logs: LogFolder, clock: Clock, *, trust: bool = False) -> None:
        self._trust = trust
        self._home = home
        self._logs = logs
        self._clock = clock
        self._look_at = float("-inf")
        self._stops: str | None = None
        self._blame = _Blame()
        self._told: frozenset[Trouble] = frozenset()

    def trouble(self, *, at_once: bool = False) -> str | None:
        """Why nothing new can be started now, None: it can; at_once: by a fresh look."""
        now = self._clock.now().boot
        if at_once or now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            found = troubles(self._home, self._logs, trust=self._trust)
            self._stops = next((str(trouble) for trouble in found if trouble.stops), None)
            self._tell(frozenset(found))
        return self._stops or (self._blame.text if now < self._blame.until else None)

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Whether a launch failed with this error for the storage's sake, or for a shortage; then nothing is
        launched for a while."""
        number = shortage_of(error)
        if number is not None:
            self.note_shortage(number)
            return True
        if not isinstance(error, OSError):
            return False
        if self.trouble(at_once=True) is not None:
            return True
        if error.errno not in _BLAMED:
            return False
        # Of a log or a temporary file the folder: their names are new each time.
        where = os.path.dirname(error.filename or "") or error.filename
        self._note(f"{where or 'launch'}: {error.strerror}: free space there")
        return True

    def note_shortage(self, number: int) -> None:
        """Something could not be started: nothing is launched for a while. number: errno of the shortage."""
        if self.trouble() is None:
            self._note(described(number))

    def try_processes(self) -> str | None:
        """The shortage for which the processes of a job cannot be started now; None: they can be."""
        number = start_error(NEEDED)
        if number is None:
            return None
        self.note_shortage(number)
        return described(number)

    def _note(self, text: str) -> None:
        if self._blame.is_new(text, self._clock.now().boot):
            log.error("%s; until then launches are tried now and then, running jobs go on", text)

    def _tell(self, found: frozenset[Trouble]) -> None:
        for trouble in sorted(found - self._told, key=str):
            if trouble.stops:
                log.error("%s; until then nothing new is started, running jobs go on", trouble)
            else:
                log.warning("%s", trouble)
        for trouble in sorted(self._told - found, key=str):
            log.info("%s %s can be used again", trouble.what, trouble.path)
        self._told = found


class _Blame:
    """What launches fail for though no look finds it. until: boot seconds before which nothing is started."""

    def __init__(self) -> None:
        self.text = ""
        self.until = float("-inf")
        self._wait_s = 0.0

    def is_new(self, text: str, now: float) -> bool:
        """Note one more failure; False if it is that which was noted last, a moment ago."""
        goes_on = now < self.until + LONGEST_BLAME_S
        new = text != self.text or not goes_on
        self._wait_s = min(2 * self._wait_s, LONGEST_BLAME_S) if goes_on else BLAME_S
        self.text, self.until = text, now + self._wait_s
        return new
