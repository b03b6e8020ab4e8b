"""Reads the newest starts of queued jobs, by which waiting jobs were overtaken."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.overtakes import REMEMBERED_STARTS, Overtakes, QueueStart
from gpu_scheduler.store.store import Store


class QueueStartsReader:
    """Reads the newest starts, and afterwards only those that were added since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._overtakes = Overtakes()

    def overtakes(self) -> Overtakes:
        """Returns the newest starts."""
        rows = self._store.db.rows(
            "SELECT id, queue_priority, queue_position, submitted_at, created_at FROM attempt"
            " WHERE id > ? AND queue_priority IS NOT NULL ORDER BY id DESC LIMIT ?",
            self._newest, REMEMBERED_STARTS,
        )  # fmt: skip
        newest = self._store.db.row("SELECT coalesce(max(id), 0) AS id FROM attempt")
        assert newest is not None
        # Only the loop adds attempts, so none was added since the query.
        self._newest = newest["id"]
        if rows:
            self._overtakes = self._overtakes.with_starts(
                [QueueStart(*tuple(row)[1:]) for row in reversed(rows)]
            )
        return self._overtakes
