"""Determines whether a store was used with simulated or real GPUs, and handles a change of kind.

The managed GPUs in the store reveal the kind, so this works with stores of all versions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.core.model.gpu import is_simulated
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.store.database import query_read_only
from gpu_scheduler.store.store import Store

#: Key in `meta` for the id of the last measurement before the store switched from real to simulated GPUs.
_NEWEST_REAL_MEASUREMENT = "measured_on_real_gpus"
#: The same for run times.
_NEWEST_REAL_RUN_TIME = "newest_real_run_time"


class RecordedGpus(Struct, frozen=True):
    """The kind of GPUs and the number of jobs in a store. simulated: None if the store has no GPUs."""

    simulated: bool | None
    jobs: int

    def conflicts_with(self, simulated: bool) -> bool:
        """Returns whether the store has jobs that ran on the other kind of GPUs."""
        return self.jobs > 0 and self.simulated is not None and self.simulated is not simulated

    def refusal(self, folder: Path) -> tuple[str, str]:
        """Returns why a start with the other kind of GPUs is refused, and the remedies."""
        made, asked = ("simulated", "real") if self.simulated else ("real", "simulated")
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return (
            f"the store in {folder} has {jobs} recorded with {made} GPUs, but this start would use {asked}"
            " GPUs; lines that have already run would not run again",
            "--state-file OTHER.json creates a separate store, --fresh forgets these jobs,"
            " and --keep-history keeps them",
        )


def recorded_gpus(database: Path) -> RecordedGpus | None:
    """Returns the kind of GPUs and the number of jobs in a database without changing it.

    Returns None if there is no database or it cannot be read at the moment.
    """
    gpus = query_read_only(database, "SELECT uuid FROM gpu WHERE managed")
    jobs = query_read_only(database, "SELECT count(*) AS n FROM job")
    if gpus is None or not jobs:
        return None
    return RecordedGpus(any(is_simulated(row["uuid"]) for row in gpus) if gpus else None, jobs[0]["n"])


def change_gpu_kind(store: Store, uuids: Iterable[str], now: Now) -> None:
    """Marks these managed GPUs, which are all of the kind that is no longer used, as unmanaged.

    If they are simulated, also removes everything that would affect real GPUs: pauses, needs raised after an
    OOM, measurements, run times, and GPU time. Real GPUs keep their pauses while they are unmanaged. Only the
    scheduler that holds the locks may call this function.
    """
    leaving = list(uuids)
    with store.db.transaction() as db:
        db.executemany("UPDATE gpu SET managed = 0 WHERE uuid = ?", [(uuid,) for uuid in leaving])
        db.execute("DELETE FROM pending_group")
        db.execute("DELETE FROM reservation WHERE start_at IS NOT NULL")
        if not any(map(is_simulated, leaving)):
            row = db.execute("SELECT coalesce(max(id), 0) FROM measurement").fetchone()
            store.db.set_meta(_NEWEST_REAL_MEASUREMENT, str(row[0]))
            row = db.execute("SELECT coalesce(max(id), 0) FROM run_time").fetchone()
            store.db.set_meta(_NEWEST_REAL_RUN_TIME, str(row[0]))
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
        db.execute("DELETE FROM run_time WHERE id > ?", (int(store.db.meta(_NEWEST_REAL_RUN_TIME) or 0),))
        db.execute("DELETE FROM gpu_time")
        _reset_min_vram(store, db)


def _reset_min_vram(store: Store, db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT id, spec FROM job WHERE min_vram_mib IS NOT NULL").fetchall()
    for row in rows:
        key = store.spec_key(JobSpec.from_json(row["spec"]))
        db.execute("UPDATE job SET min_vram_mib = NULL, spec_key = ? WHERE id = ?", (key, row["id"]))
