"""Keeps the run times of completed attempts for each workload class, and reads them for estimates."""

from __future__ import annotations

import json
import sqlite3
from itertools import groupby

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.core.scheduling.run_times import ClassRunTimes, RunTimes
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

#: Number of runs kept for each workload class, and in all. If every job has a script of its own, there are as
#: many classes as jobs, so the second limit is the one that counts.
KEPT_PER_CLASS, KEPT = 200, 50_000


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
    newest = insert(
        db, "run_time", workload_class=workload_class, identity=job.identity, at=time,
        seconds=attempt.run_time_s,
    )  # fmt: skip
    db.execute(
        "DELETE FROM run_time WHERE workload_class = ? AND id <= (SELECT id FROM run_time"
        " WHERE workload_class = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (workload_class, workload_class, KEPT_PER_CLASS),
    )
    db.execute("DELETE FROM run_time WHERE id <= ?", (newest - KEPT,))


def class_run_times(store: Store, workload_class: str) -> ClassRunTimes:
    """Returns the runs of one class."""
    rows = store.db.rows(
        "SELECT identity, seconds FROM run_time WHERE workload_class = ? ORDER BY id", workload_class
    )
    return ClassRunTimes(tuple((identity, seconds) for identity, seconds in rows))


class RunTimesReader:
    """Reads the run times of all classes, and afterwards only those of classes that have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._oldest: dict[str, int] = {}
        self._run_times = RunTimes()

    def run_times(self) -> RunTimes:
        """Returns the run times. As long as there is no new run, it is the same object."""
        row = self._store.db.row(
            "SELECT (SELECT min(id) FROM run_time) AS oldest, (SELECT max(id) FROM run_time) AS newest"
        )
        assert row is not None
        if row["newest"] is not None and row["newest"] != self._newest:
            # Only new runs delete earlier ones: of their own class, and the oldest of all.
            lost = [key for key, oldest in self._oldest.items() if oldest < row["oldest"]]
            self._read_again(lost)
            self._newest = row["newest"]
        return self._run_times

    def _read_again(self, lost: list[str]) -> None:
        """Reads the classes with new runs and the classes that have lost runs."""
        rows = self._store.db.rows(
            "SELECT workload_class, id, identity, seconds FROM run_time WHERE workload_class IN"
            " (SELECT workload_class FROM run_time WHERE id > ? UNION SELECT value FROM json_each(?))"
            " ORDER BY workload_class, id",
            self._newest, json.dumps(lost),
        )  # fmt: skip
        classes = dict(self._run_times.classes)
        for key in lost:
            del classes[key], self._oldest[key]
        for key, group in groupby(rows, key=lambda one: one[0]):
            runs = list(group)
            self._oldest[key] = runs[0]["id"]
            classes[key] = ClassRunTimes(tuple((identity, seconds) for *_, identity, seconds in runs))
        self._run_times = RunTimes(classes)
