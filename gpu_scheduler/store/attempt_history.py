"""Reads the newest starts, by which waiting jobs were overtaken, and the newest ends on each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.actions import Action, FinishAttempt
from gpu_scheduler.core.scheduling.gpu_faults import REMEMBERED_ENDS, AttemptEnd, GpuHistory
from gpu_scheduler.core.scheduling.queue_history import (
    PERIOD_HOURS,
    REMEMBERED_STARTS,
    GpuTime,
    Overtakes,
    QueueStart,
)
from gpu_scheduler.store.records import ATTEMPT_COLUMNS, AttemptRecord, attempt_records
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
            newest = "id IN (SELECT attempt_id FROM allocation WHERE gpu = ?) ORDER BY id DESC LIMIT ?"
            gpus = self._store.recorded_pauses()
            ends = [end for gpu in gpus for end in self._ends(newest, gpu, REMEMBERED_ENDS)]
            self._history = GpuHistory({end.attempt_id: end for end in ends}.values())
        return self._history

    def accept(self, recorded: Iterable[Action]) -> None:
        """Accepts the ends among these actions, which are in the store now."""
        ended = {action.attempt_id for action in recorded if isinstance(action, FinishAttempt)}
        if ended and self._history is not None:
            new = self._ends(f"id IN ({', '.join('?' * len(ended))})", *ended)
            self._history = GpuHistory([*self._history.ends, *new])

    def _ends(self, condition: str, *values: object) -> list[AttemptEnd]:
        """Returns the ends of the attempts that meet the condition, if they ran and were not adopted."""
        rows = self._store.db.rows(
            f"SELECT {ATTEMPT_COLUMNS} FROM attempt WHERE watched_pid IS NULL AND started_at IS NOT NULL"
            f" AND ended_at IS NOT NULL AND outcome <> 'not_started' AND {condition}",
            *values,
        )
        return [_end(one) for one in attempt_records(rows)]


def _end(one: AttemptRecord) -> AttemptEnd:
    assert one.started_at is not None
    assert one.ended_at is not None
    return AttemptEnd(
        one.ended_at, one.id, one.job_id, one.gpus, one.created_at, one.started_at,
        one.outcome is Outcome.COMPLETED, one.reason if one.outcome is Outcome.FAILED else None,
    )  # fmt: skip


# Reads the GPU time that attempts got, and that a reservation by queue order kept idle.


#: The key in the table `meta` of the time in wall seconds until which GPU time has been counted.
COUNTED_UNTIL_KEY = "gpu_time_counted_until"


def gpu_time(store: Store, wall: float) -> GpuTime:
    """Returns the GPU time of the period that ends now. wall: the time in wall seconds."""
    row = store.db.row(
        "SELECT total(delivered_s) AS delivered_s, total(reserved_idle_s) AS idle_s,"
        " (SELECT value FROM meta WHERE key = ?) AS until FROM gpu_time WHERE hour > ?",
        COUNTED_UNTIL_KEY, int(wall // 3600) - PERIOD_HOURS,
    )  # fmt: skip
    assert row is not None
    return GpuTime(row["delivered_s"], row["idle_s"], None if row["until"] is None else float(row["until"]))


def skip_gpu_time(store: Store, wall: float) -> None:
    """Leaves out the time since it was last counted, because no scheduler was running."""
    store.db.set_meta(COUNTED_UNTIL_KEY, repr(wall), synced=False)
