"""Switches a store between simulated and real GPUs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from gpu_scheduler.core.model.gpu import is_simulated
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.request_answer import AnswerCode, RequestAnswer
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.store import Store

#: Key in `meta`: the newest measurement when the store switched from real to simulated GPUs.
_NEWEST_REAL_MEASUREMENT = "measured_on_real_gpus"


def change_gpu_kind(store: Store, uuids: Iterable[str], now: Now) -> None:
    """Marks the managed GPUs with these UUIDs, all of the other kind, as unmanaged.

    For simulated GPUs, everything is removed that would affect real ones: pauses, needs raised after an OOM,
    and measurements. Real GPUs keep their pauses for their return. Only the scheduler that holds the locks
    may call it.
    """
    leaving = list(uuids)
    with store.db.transaction() as db:
        db.executemany("UPDATE gpu SET managed = 0 WHERE uuid = ?", [(uuid,) for uuid in leaving])
        db.execute("DELETE FROM pending_group")
        if not any(map(is_simulated, leaving)):
            row = db.execute("SELECT coalesce(max(id), 0) FROM measurement").fetchone()
            store.db.set_meta(_NEWEST_REAL_MEASUREMENT, str(row[0]))
            return
        db.executemany(
            "UPDATE gpu SET paused = 0, foreign_peaks = '[]' WHERE uuid = ?", [(uuid,) for uuid in leaving]
        )
        answer = RequestAnswer(AnswerCode.GPU_NOT_MANAGED).to_json()
        db.executemany(
            "UPDATE request SET answered_at = ?, answer = ?"
            " WHERE answered_at IS NULL AND verb IN ('pause', 'resume') AND target = ?",
            [(now.wall, answer, uuid) for uuid in leaving],
        )
        db.execute(
            "DELETE FROM measurement WHERE id > ?", (int(store.db.meta(_NEWEST_REAL_MEASUREMENT) or 0),)
        )
        _reset_min_vram(store, db)


def _reset_min_vram(store: Store, db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT id, spec FROM job WHERE min_vram_mib IS NOT NULL").fetchall()
    for row in rows:
        resource_spec = ResourceSpec.of(JobSpec.from_json(row["spec"]), learn_needs=store.learning)
        db.execute(
            "UPDATE job SET min_vram_mib = NULL, spec_key = ? WHERE id = ?",
            (resource_spec.key(), row["id"]),
        )
