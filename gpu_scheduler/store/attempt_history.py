"""Reads the newest starts, by which waiting jobs were overtaken, and the newest ends on each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.actions import Action, FinishAttempt
from gpu_scheduler.core.scheduling.overtakes import REMEMBERED_STARTS, Overtakes, QueueStart
from gpu_scheduler.core.scheduling.suspects import REMEMBERED_ENDS, AttemptEnd, GpuHistory
from gpu_scheduler.store.store import Store

#: The condition for the end of an attempt to count: it ran, and it was not adopted.
_HAS_ENDED = (
    "watched_pid IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL AND outcome <> 'not_started'"
)


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
            query = (
                "SELECT attempt_id FROM allocation JOIN attempt ON attempt.id = attempt_id"
                f" WHERE gpu = ? AND {_HAS_ENDED} ORDER BY attempt_id DESC LIMIT ?"
            )
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
        return [
            AttemptEnd(
                one.ended_at, one.id, one.job_id, one.gpus, one.created_at, one.started_at,
                one.outcome is Outcome.COMPLETED, one.reason if one.outcome is Outcome.FAILED else None,
            )
            for one in map(self._store.attempt, attempts)
            if one is not None and one.outcome is not Outcome.NOT_STARTED and one.watched_pid is None
            and one.started_at is not None and one.ended_at is not None
        ]  # fmt: skip
