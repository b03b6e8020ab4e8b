"""Backs up the store while the scheduler is running, first soon after the start and then once a day."""

from __future__ import annotations

import logging
import sqlite3

from gpu_scheduler.clock import Clock
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import backups
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds from the start to the first backup, long enough for the first jobs to be launched before it.
FIRST_AFTER_S = 3.0
EVERY_S = 86_400.0
#: Seconds until a failed backup is retried.
RETRY_S = 3_600.0


class BackupTimer:
    """Makes backups when they are due. again_at: when the next one is due, in seconds since boot."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._failure: str | None = None
        self.again_at = clock.now().boot + FIRST_AFTER_S

    def back_up_if_due(self) -> None:
        """Makes a backup if one is due. Logs repeated failures for the same reason only once."""
        now = self._clock.now().boot
        if now < self.again_at:
            return
        try:
            made = backups.make_backup(self._store.db.connection, self._store.data_dir)
        except (OSError, sqlite3.Error, SchedulerError) as error:
            self.again_at = now + RETRY_S
            if str(error) != self._failure:
                log.warning("cannot back up the store: %s", error)
            self._failure = str(error)
            return
        self.again_at = now + EVERY_S
        self._failure = None
        log.debug("store backed up to %s", made.path)
