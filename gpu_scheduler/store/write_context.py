"""The transaction in which the writer records the actions of one round and adds events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.event import AttemptDetails, EventDetails, EventKind
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.database import insert

if TYPE_CHECKING:
    from gpu_scheduler.store.store import Store


@dataclass(frozen=True)
class WriteContext:
    """An open transaction. now: the time of the round; executor: the executor of new attempts."""

    store: Store
    db: sqlite3.Connection
    settings: Settings
    now: Now
    executor: str

    @cached_property
    def _gpus(self) -> dict[str, tuple[int, int | None]]:
        rows = self.db.execute("SELECT uuid, idx, total_mib FROM gpu").fetchall()
        return {uuid: (index, total_mib) for uuid, index, total_mib in rows}

    def gpu_indices(self, gpus: Iterable[str]) -> list[int]:
        """Returns the indices of the given GPUs, with -1 for each unknown GPU."""
        return [self._gpus[gpu][0] if gpu in self._gpus else -1 for gpu in gpus]

    def gpu_total_mib(self, gpu: str) -> int | None:
        """Returns the memory size of a GPU, or None if it is unknown."""
        return self._gpus[gpu][1] if gpu in self._gpus else None

    def job_history(self, job_id: int) -> tuple[str, ...]:
        """Returns the events of a job as texts, oldest first."""
        events = self.db.execute("SELECT kind, reason FROM event WHERE job_id = ? ORDER BY id", (job_id,))
        return tuple(f"{event['kind']} {event['reason'] or ''}".strip() for event in events)

    def add_event(
        self,
        kind: EventKind,
        job_id: int = 0,
        reason: str | None = None,
        details: EventDetails | None = None,
    ) -> None:
        """Adds an event. job_id: 0 if it is not about a job; reason: plain text, or a reason as JSON."""
        data = {} if details is None else details.data()
        insert(
            self.db, "event", job_id=job_id, at=self.now.wall, kind=kind.value, reason=reason,
            data=json.dumps(data),
        )  # fmt: skip

    def add_attempt_event(self, kind: EventKind, attempt_id: int) -> None:
        """Adds an event about an attempt."""
        job_id, number = self.db.execute(
            "SELECT job_id, number FROM attempt WHERE id = ?", (attempt_id,)
        ).fetchone()
        self.add_event(kind, job_id, details=AttemptDetails(number))
