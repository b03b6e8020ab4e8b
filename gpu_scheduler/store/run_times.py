"""Keeps the run times of completed attempts for each workload class, and reads them for estimates."""

from __future__ import annotations

import sqlite3
from itertools import groupby

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.core.scheduling.run_times import ClassRunTimes, RunTimes
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

#: Number of runs kept for each workload class.
KEPT_PER_CLASS = 200


def record_run_time(db: sqlite3.Connection, attempt: AttemptRecord, job: JobRecord, time: float) -> None:
    """Records the run time of an ended attempt if it completed and has done all the work of its job.

    job: as before the end of the attempt. time: in wall seconds. If an earlier attempt left a checkpoint, the
    command may have continued from it by itself. A time that is not positive is that of a clock which was set
    back.
    """
    if attempt.outcome is not Outcome.COMPLETED or not attempt.run_time_s:
        return
    if attempt.resumed_from is not None or job.checkpoint is not None:
        return
    workload_class = workload_class_of(job.spec)
    insert(
        db, "run_time", workload_class=workload_class, identity=job.identity, at=time,
        seconds=attempt.run_time_s,
    )  # fmt: skip
    db.execute(
        "DELETE FROM run_time WHERE workload_class = ? AND id <= (SELECT id FROM run_time"
        " WHERE workload_class = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (workload_class, workload_class, KEPT_PER_CLASS),
    )


class RunTimesReader:
    """Reads the run times of all classes, and afterwards only those of classes with new runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._run_times = RunTimes()

    def run_times(self) -> RunTimes:
        """Returns the run times. As long as there is no new run, it is the same object."""
        row = self._store.db.row("SELECT coalesce(max(id), 0) AS newest FROM run_time")
        assert row is not None
        if row["newest"] != self._newest:
            rows = self._store.db.rows(
                "SELECT workload_class, identity, seconds FROM run_time WHERE workload_class IN"
                " (SELECT workload_class FROM run_time WHERE id > ?) ORDER BY workload_class, id",
                self._newest,
            )
            changed = {
                key: ClassRunTimes(tuple((identity, seconds) for _, identity, seconds in runs))
                for key, runs in groupby(rows, key=lambda one: one["workload_class"])
            }
            self._newest = row["newest"]
            self._run_times = RunTimes({**self._run_times.classes, **changed})
        return self._run_times
