"""Finds memory that was allocated twice.

The evidence is the jobs' traces, the store, and a watcher that samples the store and the GPUs during the run.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import simulated_usage
from tests.stress.trace import number_of

#: Seconds by which two clocks may differ.
_CLOCKS_S = 0.005
#: Seconds between two samples of the watcher.
_INTERVAL_S = 0.004


@dataclass
class Span:
    """Memory that `who` holds on a GPU. begin, end: monotonic seconds (`end` is infinite if still held)."""

    who: str
    gpu: int
    mib: int
    begin: float
    end: float = math.inf


@dataclass
class ForeignProcess(Span):
    """The peak memory of a foreign process.

    begin: when the scheduler must know the peak; end: when the process is asked to end.
    """

    pid: int = 0

    def lives(self) -> bool:
        """Returns whether the process still holds its memory."""
        return self.end == math.inf and simulated_usage.start_ticks(self.pid) is not None


def overcommitments(spans: Iterable[Span], total_mib: int) -> list[str]:
    """Describes every span that did not fit beside the other spans on its GPU when it began."""
    found = []
    held: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        here = [other for other in held.get(span.gpu, ()) if other.end > span.begin] + [span]
        held[span.gpu] = here
        if sum(other.mib for other in here) > total_mib:
            held_by = " + ".join(f"{other.who} {other.mib}" for other in here)
            found.append(f"GPU {span.gpu}: {held_by} MiB of {total_mib} at {span.begin:.3f}")
    return found


def spans_in_trace(trace: Path) -> tuple[dict[int, Span], list[int]]:
    """Returns each job's declared memory while it ran, by number, and the jobs that ran out of memory."""
    spans: dict[int, Span] = {}
    full = []
    for line in trace.read_text().splitlines() if trace.exists() else []:
        number, what, _, gpu, mib, at, *more = line.split()
        if what == "start":
            spans[int(number)] = Span(f"job {number}", int(gpu), int(mib), float(at))
        else:
            spans[int(number)].end = float(at)
            full += [int(number)] * ("oom" in more)
    return spans, full


def spans_in_store(store: Store) -> dict[int, list[Span]]:
    """Returns the allocations in the store by job number, each slightly shortened at both ends."""
    wall = time.time() - time.monotonic()
    boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    index = store.gpu_indices()
    spans: dict[int, list[Span]] = {}
    sql = (
        "SELECT attempt.created_at, attempt.released_boot, allocation.gpu, allocation.vram, job.text"
        " FROM allocation JOIN attempt ON attempt.id = attempt_id JOIN job ON job.id = job_id"
    )
    for row in store.db.rows(sql):
        number = number_of(row["text"])
        until = row["released_boot"]
        end = math.inf if until is None else until - boot - _CLOCKS_S
        begin = row["created_at"] - wall + _CLOCKS_S
        span = Span(f"job {number}", index[row["gpu"]], row["vram"] or 0, begin, end)
        spans.setdefault(number, []).append(span)
    return spans


def count_waits(lived: dict[int, Span], sent_at: dict[int, float]) -> int:
    """Counts the jobs that were appended while another job ran and then waited for that job's GPU."""
    return sum(
        any(other.gpu == span.gpu and sent_at[number] < other.end <= span.begin for other in lived.values())
        for number, span in lived.items()
    )


def released_early(lived: dict[int, Span], held: dict[int, list[Span]]) -> list[str]:
    """Describes every job that was alive at a time when the store had no allocation for it."""
    found = []
    for number, span in lived.items():
        recorded = held.get(number, [])
        begins = [one.begin - 2 * _CLOCKS_S for one in recorded if one.gpu == span.gpu]
        ends = [one.end + 2 * _CLOCKS_S for one in recorded if one.gpu == span.gpu]
        if not recorded or span.begin < min(begins, default=math.inf) or span.end > max(ends, default=0.0):
            found.append(f"{span} is {recorded} in the store")
    return found


class Watcher(threading.Thread):
    """Samples the store and the GPUs continuously.

    home: None if there is no store. double_allocations, overfull: descriptions of the faults, each case once.
    """

    def __init__(
        self,
        home: DataDir | None,
        sim: Path,
        total_mib: int,
        foreign_processes: Callable[[], list[ForeignProcess]],
    ) -> None:
        super().__init__(name="watcher")
        self.samples = 0
        self.peak_mib = 0
        self.double_allocations: dict[object, str] = {}
        self.overfull: dict[object, str] = {}
        self.error: Exception | None = None
        self._home, self._sim, self._total, self._foreign_processes = (
            home,
            str(sim),
            total_mib,
            foreign_processes,
        )
        self._over = threading.Event()

    def stop(self) -> None:
        """Stops sampling. If an error has ended the sampling, raises that error."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Samples until `stop` is called. Keeps any error, so that `stop` can raise it."""
        store = Store(self._home) if self._home is not None else None
        try:
            while not self._over.wait(_INTERVAL_S):
                if store is not None:
                    self._check_store(store)
                self._check_gpus()
                self.samples += 1
        except Exception as error:  # noqa: BLE001 - `stop` raises it again
            self.error = error
        finally:
            if store is not None:
                store.close()

    def _check_store(self, store: Store) -> None:
        index = store.gpu_indices()
        # A process that is known before the store is read, and alive after it, existed while it was read.
        known = self._foreign_processes()
        rows = store.db.rows(
            "SELECT id, gpu, vram FROM attempt JOIN allocation ON attempt_id = id WHERE released_boot IS NULL"
        )
        alive = [other for other in known if other.lives()]
        for gpu in index.values():
            here = [row for row in rows if gpu == index[row["gpu"]]]
            ours = sum(row["vram"] or 0 for row in here)
            theirs = sum(other.mib for other in alive if other.gpu == gpu)
            self.peak_mib = max(self.peak_mib, ours + theirs)
            if ours + theirs > self._total:
                ids = tuple(row["id"] for row in here)
                self.double_allocations[(gpu, ids)] = (
                    f"GPU {gpu}: attempts {ids} {ours} MiB + foreign {theirs} MiB"
                )

    def _check_gpus(self) -> None:
        # The lock prevents changes of memory use while the uses are added up.
        with simulated_usage.locked(self._sim):
            uses = simulated_usage.read_usages(self._sim)
        used: dict[int, int] = {}
        for use in uses:
            for gpu, mib in use.gpus.items():
                used[gpu] = used.get(gpu, 0) + mib
        for gpu, mib in used.items():
            if mib > self._total:
                pids = tuple(use.pid for use in uses if gpu in use.gpus)
                self.overfull[(gpu, pids)] = f"GPU {gpu}: {mib} MiB are used, by processes {pids}"
