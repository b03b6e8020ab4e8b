"""Monitors the files and folders that the scheduler writes to, and logs each health issue once.

A launch may also fail for a cause that no check finds: a project quota, or a shortage of processes, memory or
open files. Launches then pause for a while, and the pause doubles while they go on failing.
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

#: Least seconds between two checks; the loop asks once a second while there is an issue.
LOOK_EVERY_S = 0.5
#: Seconds without launches after such a failure: at first, and at most.
BLAME_S, LONGEST_BLAME_S = 0.5, 30.0
#: Errors that mean a launch failed because of storage, whatever the next check finds.
_BLAMED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class StorageWatch:
    """A monitor that checks at most twice a second and logs when a health issue begins and ends.

    trust: files are used whoever owns them or may write them.
    """

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
        """Returns the issue that stops new starts, None if there is none. fresh: check now."""
        now = self._clock.now().boot
        if at_once or now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            found = troubles(self._home, self._logs, trust=self._trust)
            self._stops = next((str(issue) for issue in found if issue.stops), None)
            self._tell(frozenset(found))
        return self._stops or (self._blame.text if now < self._blame.until else None)

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Returns whether storage or a shortage made a launch fail; if so, launches pause for a while."""
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
        # Logs and temporary files have new names each time; their folder stays the same.
        where = os.path.dirname(error.filename or "") or error.filename
        self._note(f"{where or 'launch'}: {error.strerror}: free space there")
        return True

    def note_shortage(self, number: int) -> None:
        """Pauses launches after a shortage kept something from starting. error_number: its errno."""
        if self.trouble() is None:
            self._note(described(number))

    def try_processes(self) -> str | None:
        """Tries to start a job's processes; returns the shortage that prevents it, None on success."""
        number = start_error(NEEDED)
        if number is None:
            return None
        self.note_shortage(number)
        return described(number)

    def _note(self, text: str) -> None:
        if self._blame.is_new(text, self._clock.now().boot):
            log.error("%s; until then launches are retried now and then, running jobs continue", text)

    def _tell(self, found: frozenset[Trouble]) -> None:
        for issue in sorted(found - self._told, key=str):
            if issue.stops:
                log.error("%s; until then no new job starts, running jobs continue", issue)
            else:
                log.warning("%s", issue)
        for issue in sorted(self._told - found, key=str):
            log.info("%s %s can be used again", issue.what, issue.path)
        self._told = found


class _Blame:
    """A growing pause after launches fail for a cause that no check finds. until: boot seconds of its end."""

    def __init__(self) -> None:
        self.text = ""
        self.until = float("-inf")
        self._wait_s = 0.0

    def is_new(self, text: str, now: float) -> bool:
        """Records a failure and extends the pause; returns whether its cause is new or not recent."""
        goes_on = now < self.until + LONGEST_BLAME_S
        new = text != self.text or not goes_on
        self._wait_s = min(2 * self._wait_s, LONGEST_BLAME_S) if goes_on else BLAME_S
        self.text, self.until = text, now + self._wait_s
        return new
