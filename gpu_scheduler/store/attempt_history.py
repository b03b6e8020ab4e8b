"""Keeps what past attempts tell about later ones.

These are the measured usage and the run times of each workload class, which is a program and a model, the
newest starts, by which waiting jobs were overtaken, the newest ends on each GPU, and the GPU time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.job import Attempt, Job
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.actions import Action, AttemptChanged
from gpu_scheduler.core.scheduling.history import (
    PERIOD_HOURS,
    REMEMBERED_ENDS,
    REMEMBERED_STARTS,
    AttemptEnd,
    ClassRunTimes,
    GpuHistory,
    GpuTime,
    Overtakes,
    QueueStart,
    RunTimes,
)
from gpu_scheduler.core.scheduling.needs import WorkloadClass, learned_needs, quantile, workload_class_of
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.records import ATTEMPTS
from gpu_scheduler.store.store import Marks, Store

#: The key in the table `meta` of the time in wall seconds until which GPU time has been counted.
COUNTED_UNTIL_KEY = "gpu_time_counted_until"
#: Number of measurements and of run times kept for each workload class, and of run times in all. If every job
#: has a script of its own, there are as many classes as jobs, so the second limit is the one that counts.
KEPT_PER_CLASS, KEPT = 200, 50_000


class QueueStartsReader:
    """Reads the newest starts, and afterwards only those that were added since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._overtakes = Overtakes()

    def overtakes(self, marks: Marks) -> Overtakes:
        """Returns the newest starts."""
        if marks.newest_attempt != self._newest:
            rows = self._store.db.rows(
                "SELECT queue_priority, queue_position, submitted_at, created_at FROM attempt"
                " WHERE id > ? AND id <= ? AND queue_priority IS NOT NULL ORDER BY id DESC LIMIT ?",
                self._newest, marks.newest_attempt, REMEMBERED_STARTS,
            )  # fmt: skip
            self._newest = marks.newest_attempt
            self._overtakes = self._overtakes.with_starts([QueueStart(*row) for row in reversed(rows)])
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
            gpus = self._store.managed_gpus().values()
            ends = [end for gpu in gpus for end in self._ends(newest, gpu, REMEMBERED_ENDS)]
            self._history = GpuHistory({end.attempt_id: end for end in ends}.values())
        return self._history

    def accept(self, recorded: Iterable[Action]) -> None:
        """Accepts the ends among these actions, which are in the store now."""
        ended = {one.new.id for one in recorded if isinstance(one, AttemptChanged) and one.is_end}
        if ended and self._history is not None:
            new = self._ends(f"id IN ({', '.join('?' * len(ended))})", *ended)
            self._history = GpuHistory([*self._history.ends, *new])

    def _ends(self, condition: str, *values: object) -> list[AttemptEnd]:
        """Returns the ends of the attempts that meet the condition, if they ran and were not adopted."""
        rows = self._store.db.rows(
            f"SELECT {ATTEMPTS.columns} FROM attempt WHERE watched_pid IS NULL AND started_at IS NOT NULL"
            f" AND ended_at IS NOT NULL AND outcome <> 'not_started' AND {condition}",
            *values,
        )
        return [_end(one) for one in map(ATTEMPTS.record, rows)]


def _end(one: Attempt) -> AttemptEnd:
    assert one.started_at is not None
    assert one.ended_at is not None
    return AttemptEnd(
        one.ended_at, one.id, one.job_id, one.gpus, one.created_at, one.started_at,
        one.outcome is Outcome.COMPLETED, one.reason if one.outcome is Outcome.FAILED else None,
    )  # fmt: skip


class AttemptTimes(NamedTuple):
    """When an attempt waited and ran, in wall seconds.

    outcome: None while it is open. queued_at: when its job began to wait for this start; None if it watches
    an adopted process. started_at: that of its command. gpus: the UUIDs of its GPUs.
    """

    id: int
    outcome: str | None
    queued_at: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    gpus: tuple[str, ...]


def attempt_times(store: Store, after: int, also: Iterable[int] = ()) -> Iterator[AttemptTimes]:
    """Yields the attempts with a higher id than `after` and those with the ids `also`, in the order of ids.

    The store knows only when a job last began to wait. For an earlier attempt, this is when its job was
    submitted, or when the attempt before ended.
    """
    rows = store.db.connection.execute(
        "SELECT attempt.id, attempt.outcome, CASE WHEN watched_pid IS NULL THEN"
        " CASE WHEN job.queued_at <= attempt.created_at THEN job.queued_at"
        " ELSE max(coalesce(attempt.submitted_at, job.created_at), coalesce((SELECT ended_at FROM attempt AS"
        " before WHERE before.job_id = job.id AND before.number = attempt.number - 1), 0)) END END,"
        " attempt.created_at, started_at, ended_at,"
        " (SELECT group_concat(gpu) FROM allocation WHERE attempt_id = attempt.id)"
        " FROM attempt JOIN job ON job.id = attempt.job_id WHERE attempt.id IN"  # OR would scan the table
        " (SELECT value FROM json_each(?) UNION ALL SELECT id FROM attempt WHERE id > ?) ORDER BY attempt.id",
        (json.dumps(list(also)), after),
    )
    for *values, gpus in rows:
        yield AttemptTimes._make([*values, tuple(gpus.split(",")) if gpus else ()])


def newest_attempt(store: Store) -> tuple[int, str]:
    """Returns the id and the token of the newest attempt; 0 and "" if there is none."""
    row = store.db.row("SELECT id, token FROM attempt ORDER BY id DESC LIMIT 1")
    return (0, "") if row is None else (row["id"], row["token"])


class PastRun(Struct, frozen=True):
    """The run of an attempt on GPUs of this machine. Times are wall seconds; ended_at is None while it runs.

    name: that of its job. gpus: the indices.
    """

    job: int
    attempt: int
    name: str | None
    gpus: tuple[int, ...]
    started_at: float
    ended_at: float | None
    outcome: str | None


def recent_runs(store: Store, since: float, limit: int) -> list[PastRun]:
    """Returns the newest `limit` runs that ended after `since` (wall seconds) or still run, oldest first."""
    rows = store.db.rows(
        "SELECT job_id, number, job.name, started_at, ended_at, attempt.outcome, json_group_array(idx)"
        " FROM attempt JOIN job ON job.id = job_id JOIN allocation ON attempt_id = attempt.id"
        " JOIN gpu ON uuid = gpu WHERE started_at IS NOT NULL AND (ended_at IS NULL OR ended_at > ?)"
        " AND attempt.id IN (SELECT id FROM attempt WHERE state <> 'closed'"
        " UNION SELECT id FROM (SELECT id FROM attempt ORDER BY id DESC LIMIT ?)) GROUP BY attempt.id",
        since, limit,
    )  # fmt: skip
    return [
        PastRun(job, number, name, tuple(json.loads(gpus)), *rest) for job, number, name, *rest, gpus in rows
    ]


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


def workload_classes(store: Store) -> list[WorkloadClass]:
    """Returns the workload classes with at least one completed attempt, sorted by program and model."""
    rows = store.db.rows(
        "SELECT workload_class, gpu_count, peak_mib, declared_mib, seconds FROM measurement"
        " WHERE outcome = 'completed' ORDER BY workload_class, id"
    )
    found = []
    for key, group in groupby(rows, key=itemgetter("workload_class")):
        runs = list(group)
        program, llm = json.loads(key)
        peaks = [run["peak_mib"] for run in runs]
        seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
        found.append(
            WorkloadClass(
                program,
                llm,
                runs=len(runs),
                max_mib=max(peaks),
                p95_mib=quantile(peaks),
                declared_mib=runs[-1]["declared_mib"],
                gpus=min(run["gpu_count"] for run in runs),
                mean_s=sum(seconds) / len(seconds) if seconds else None,
                longest_s=max(seconds, default=None),
            )
        )
    return found


def record_measurement(db: sqlite3.Connection, attempt: Attempt, job: Job, time: float) -> None:
    """Records the measured usage of an ended attempt for its workload class. time: in wall seconds."""
    peak = max(attempt.peaks.values(), default=0)
    if not peak or attempt.outcome is None:
        return
    # Memory that was learned, or raised after an OOM, was not declared by the user.
    judged = not attempt.learned and job.min_vram_mib is None
    declared = job.spec.vram if not judged else attempt.vram if attempt.has_budget else None
    workload_class = workload_class_of(job.spec)
    insert(
        db, "measurement", workload_class=workload_class, at=time, gpu_count=len(attempt.gpus), peak_mib=peak,
        declared_mib=declared, seconds=attempt.run_time_s, outcome=attempt.outcome.value,
    )  # fmt: skip
    _delete_old(db, "measurement", workload_class)


def _delete_old(db: sqlite3.Connection, table: str, workload_class: str) -> None:
    """Deletes the rows of a workload class, except the newest ones."""
    db.execute(
        f"DELETE FROM {table} WHERE workload_class = ? AND id <= (SELECT id FROM {table}"
        " WHERE workload_class = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (workload_class, workload_class, KEPT_PER_CLASS),
    )


class LearnedNeedsReader:
    """Reads the needs learned for the workload classes, and rereads them after each new measurement."""

    def __init__(self, store: Store, spike_buffer: float) -> None:
        self._store = store
        self._spike_buffer = spike_buffer
        self._newest = 0
        self._needs: dict[str, int] = {}

    def needs(self, marks: Marks) -> dict[str, int]:
        """Returns the memory that each workload class needs, in MiB."""
        if marks.newest_measurement != self._newest:
            self._needs = learned_needs(workload_classes(self._store), self._spike_buffer)
            self._newest = marks.newest_measurement
        return self._needs


def record_run_time(db: sqlite3.Connection, attempt: Attempt, job: Job, time: float) -> None:
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
    _delete_old(db, "run_time", workload_class)
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

    def run_times(self, marks: Marks) -> RunTimes:
        """Returns the run times. As long as there is no new run, it is the same object."""
        if marks.newest_run_time not in (0, self._newest):
            # Only new runs delete earlier ones: of their own class, and the oldest of all.
            lost = [key for key, oldest in self._oldest.items() if oldest < marks.oldest_run_time]
            self._read_again(lost)
            self._newest = marks.newest_run_time
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
        for key, group in groupby(rows, key=itemgetter("workload_class")):
            runs = list(group)
            self._oldest[key] = runs[0]["id"]
            classes[key] = ClassRunTimes(tuple((identity, seconds) for *_, identity, seconds in runs))
        self._run_times = RunTimes(classes)
