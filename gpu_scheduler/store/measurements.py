"""Keeps the measured usage of finished attempts for each workload class, which is a program and a model."""

from __future__ import annotations

import json
import sqlite3

from gpu_scheduler.core.scheduling.learned_needs import WorkloadClass, learned_needs, quantile
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

#: Number of measurements kept for each workload class.
_KEPT_PER_CLASS = 200


def workload_classes(store: Store) -> list[WorkloadClass]:
    """Returns the workload classes with at least one completed attempt, sorted by program and model."""
    rows = store.db.rows(
        "SELECT workload_class, gpu_count, peak_mib, declared_mib, seconds FROM measurement"
        " WHERE outcome = 'completed' ORDER BY workload_class, id"
    )
    runs_by_class: dict[str, list[tuple[int, int, int | None, float | None]]] = {}
    for row in rows:
        runs = runs_by_class.setdefault(row["workload_class"], [])
        runs.append((row["gpu_count"], row["peak_mib"], row["declared_mib"], row["seconds"]))
    found = []
    for key, runs in runs_by_class.items():
        program, llm = json.loads(key)
        peaks = [peak for _, peak, _, _ in runs]
        seconds = [took for _, _, _, took in runs if took is not None]
        found.append(
            WorkloadClass(
                program,
                llm,
                runs=len(runs),
                max_mib=max(peaks),
                p95_mib=quantile(peaks),
                declared_mib=runs[-1][2],
                gpus=min(gpus for gpus, *_ in runs),
                mean_s=sum(seconds) / len(seconds) if seconds else None,
                longest_s=max(seconds, default=None),
            )
        )
    return found


def record_measurement(db: sqlite3.Connection, attempt: AttemptRecord, job: JobRecord, time: float) -> None:
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
    db.execute(
        "DELETE FROM measurement WHERE workload_class = ? AND id <= (SELECT id FROM measurement"
        " WHERE workload_class = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (workload_class, workload_class, _KEPT_PER_CLASS),
    )


class LearnedNeedsReader:
    """Reads the needs learned for the workload classes, and rereads them after each new measurement."""

    def __init__(self, store: Store, spike_buffer: float) -> None:
        self._store = store
        self._spike_buffer = spike_buffer
        self._newest: int | None = None
        self._needs: dict[str, int] = {}

    def needs(self) -> dict[str, int]:
        """Returns the memory that each workload class needs, in MiB."""
        row = self._store.db.row("SELECT max(id) AS newest FROM measurement")
        newest = row["newest"] if row else None
        if newest != self._newest:
            self._newest = newest
            self._needs = learned_needs(workload_classes(self._store), self._spike_buffer)
        return self._needs
