"""Keeps the measured usage of finished attempts by workload class, i.e. program and model."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.core.scheduling.accounting import with_spike_buffer
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

#: The quantile of the peaks on which a learned need is based.
QUANTILE = 0.95
#: Number of measurements kept for each workload class.
_KEPT_PER_CLASS = 200


@dataclass(frozen=True)
class ClassUsage:
    """Usage of the completed runs of a workload class.

    workload_class: its key, as workload_class_of makes it; peaks: MiB; declared: MiB declared by the newest
    run, None = none; gpus: the fewest that a run had; seconds: run times, where known.
    """

    workload_class: str
    program: str
    llm: str | None
    peaks: tuple[int, ...]
    declared: int | None
    gpus: int
    seconds: tuple[float, ...]

    @property
    def p95(self) -> int:
        """The peak in MiB that 95 % of the runs do not exceed (nearest rank)."""
        return quantile(self.peaks)


def quantile(values: Sequence[int], q: float = QUANTILE) -> int:
    """Returns the smallest value that at least the fraction q of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def class_usages(store: Store) -> list[ClassUsage]:
    """Returns the usage of each workload class that completed at least once, by program and model."""
    rows = store.db.rows(
        "SELECT workload_class, gpu_count, peak_mib, declared_mib, seconds FROM measurement"
        " WHERE outcome = 'completed' ORDER BY workload_class, id"
    )
    runs_by_class: dict[str, list[tuple[int, int, int | None, float | None]]] = {}
    for row in rows:
        runs = runs_by_class.setdefault(row["workload_class"], [])
        runs.append((row["gpu_count"], row["peak_mib"], row["declared_mib"], row["seconds"]))
    found = []
    for workload_class, runs in runs_by_class.items():
        program, llm = json.loads(workload_class)
        peaks = tuple(peak for _, peak, _, _ in runs)
        seconds = tuple(took for _, _, _, took in runs if took is not None)
        found.append(
            ClassUsage(
                workload_class, program, llm, peaks, runs[-1][2], min(gpus for gpus, *_ in runs), seconds
            )
        )
    return found


def record_measurement(db: sqlite3.Connection, attempt: AttemptRecord, job: JobRecord, time: float) -> None:
    """Records the measured usage of an ended attempt for its workload class. time: wall seconds."""
    peak = max(attempt.peaks.values(), default=0)
    if not peak or attempt.outcome is None:
        return
    # Memory that was learned, or raised after an OOM, was not declared by the user.
    judged = not attempt.learned and job.min_vram_mib is None
    declared = job.spec.vram if not judged else attempt.vram if attempt.has_budget else None
    workload_class = workload_class_of(job.spec)
    db.execute(
        "INSERT INTO measurement (workload_class, at, gpu_count, peak_mib, declared_mib, seconds, outcome)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (workload_class, time, len(attempt.gpus), peak, declared, attempt.run_time_s, attempt.outcome.value),
    )
    db.execute(
        "DELETE FROM measurement WHERE workload_class = ? AND id <= (SELECT id FROM measurement"
        " WHERE workload_class = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (workload_class, workload_class, _KEPT_PER_CLASS),
    )


class LearnedNeeds:
    """Needs learned for each workload class: the p95 of its peaks plus the spike buffer, in MiB.

    They are read again only after a new measurement.
    """

    def __init__(self, store: Store, spike_buffer: float) -> None:
        self._store = store
        self._spike_buffer = spike_buffer
        self._newest: int | None = None
        self._needs: dict[str, int] = {}

    def needs(self) -> dict[str, int]:
        """Returns workload class -> MiB."""
        row = self._store.db.row("SELECT max(id) AS newest FROM measurement")
        newest = row["newest"] if row else None
        if newest != self._newest:
            self._newest = newest
            self._needs = {
                one.workload_class: with_spike_buffer(one.p95, self._spike_buffer)
                for one in class_usages(self._store)
            }
        return self._needs
