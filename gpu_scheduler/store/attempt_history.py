"""Reads the newest starts, by which waiting jobs were overtaken, and the newest ends on each GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.scheduling.actions import Action, FinishAttempt
from gpu_scheduler.core.scheduling.overtakes import REMEMBERED_STARTS, Overtakes, QueueStart
from gpu_scheduler.core.scheduling.suspects import REMEMBERED_ENDS, AttemptEnd, GpuHistory
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


class GpuHistoryReader:
    """Reads the newest ends on each GPU, and afterwards only those that the loop has recorded since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._history: GpuHistory | None = None

    def history(self) -> GpuHistory:
        """Returns the newest ends. As long as there is no new one, it is the same object."""
        if self._history is None:
            query = "SELECT attempt_id FROM allocation WHERE gpu = ? ORDER BY attempt_id DESC LIMIT ?"
            gpus = self._store.recorded_pauses()
            ids = {row[0] for gpu in gpus for row in self._store.db.rows(query, gpu, REMEMBERED_ENDS)}
            self._history = GpuHistory(self._ends(ids))
        return self._history

    def accept(self, recorded: Iterable[Action]) -> None:
        """Accepts the ends among these actions, which are in the store now."""
        ended = {action.attempt_id for action in recorded if isinstance(action, FinishAttempt)}
        if ended and self._history is not None:
            self._history = GpuHistory([*self._history.ends, *self._ends(ended)])

    def _ends(self, attempts: Iterable[int]) -> list[AttemptEnd]:
        """Returns the ends of these attempts, if they ran and were not adopted."""
        rows = self._store.db.rows(
            "SELECT ended_at, id, job_id, (SELECT json_group_array(gpu) FROM (SELECT gpu FROM allocation"
            " WHERE attempt_id = attempt.id ORDER BY ordinal)), created_at, started_at,"
            " outcome = 'completed', CASE WHEN outcome = 'failed' THEN coalesce(reason, '') END"
            " FROM attempt WHERE id IN (SELECT value FROM json_each(?)) AND watched_pid IS NULL"
            " AND started_at IS NOT NULL AND ended_at IS NOT NULL AND outcome <> 'not_started'",
            json.dumps(list(attempts)),
        )  # fmt: skip
        return [
            AttemptEnd(
                ended_at, attempt_id, job_id, tuple(json.loads(gpus)), created_at, started_at,
                bool(completed), None if reason is None else StateReason.from_json(reason),
            )
            for ended_at, attempt_id, job_id, gpus, created_at, started_at, completed, reason in rows
        ]  # fmt: skip
