"""Records the lock folder of the scheduler, for other commands and for the next start."""

from __future__ import annotations

import logging
from pathlib import Path

from gpu_scheduler.attempts.executor import LOCAL_EXECUTORS
from gpu_scheduler.claims.foreign_claims import LOCK_FOLDER_KEY
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)


def record_lock_folder(store: Store, folder: Path, boot_id: str) -> None:
    """Records the folder with the lock files of the scheduler's GPUs.

    Logs a warning if running jobs hold their claims in another folder. boot_id: the current boot.
    """
    before = store.db.meta(LOCK_FOLDER_KEY)
    store.db.set_meta(LOCK_FOLDER_KEY, str(folder))
    if before in (None, str(folder)):
        return
    running = [
        one
        for one in store.active_attempts()
        if one.state.is_open and one.boot_id == boot_id and one.executor in LOCAL_EXECUTORS
    ]
    if running:
        log.warning(
            "the lock folder has changed from %s to %s; `run` does not see the claims of running jobs (%d)"
            " until they end",
            before,
            folder,
            len(running),
        )
