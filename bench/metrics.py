"""Measures how long a scrape of /metrics takes with many finished attempts.

`python -m bench.metrics [--attempts 100000] [--scrapes 20]` prints a table. The first scrape of a server
reads all attempts of the store, and each later one those that are new: here 10, and 4 that were running.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bench.table import Row, format_table
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter
from gpu_scheduler.web.metrics import QueueCollector

_GPUS = 8
#: Attempts that run at each scrape, and those that are new then.
_RUNNING, _NEW = 4, 10


def main() -> None:
    """Fills a store, measures the scrapes and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        state_file = str(Path(folder, "gpu_scheduler_state.json"))
        with closing(Store(DataDir.of(state_file), create=True)) as store:
            samples = [GpuSample(f"GPU-{n}", n, "A100", 81920, 512, 0.0) for n in range(_GPUS)]
            StoreWriter(store, Settings()).record_gpus(samples, [one.uuid for one in samples], Clock().now())
            add_attempts(store, 1, options.attempts)
            collector = QueueCollector(Location(state_file))
            found = [measured_ms(collector)]
            for number in range(options.scrapes):
                add_attempts(store, options.attempts + 1 + number * _NEW, _NEW)
                found.append(measured_ms(collector))
            size = len(collector.page("")[0])
    (first, *later), (first_cpu, *later_cpu) = zip(*found, strict=True)
    rows = [
        Row("first scrape of a server", "ms", "", [[first]]),
        Row("first scrape, processor time", "ms", "", [[first_cpu]]),
        Row("later scrape", "ms", "<= 100", [list(later)]),
        Row("later scrape, processor time", "ms", "", [list(later_cpu)]),
        Row("size of the page", "KiB", "", [[size / 1024]]),
    ]
    print(format_table([f"{options.attempts:,} attempts"], rows), flush=True)


def measured_ms(collector: QueueCollector) -> tuple[float, float]:
    """Returns how long a scrape takes, and how much processor time."""
    began, began_cpu = time.perf_counter(), time.process_time()
    collector.page("")
    return (time.perf_counter() - began) * 1000, (time.process_time() - began_cpu) * 1000


def add_attempts(store: Store, first: int, count: int) -> None:
    """Inserts attempts with these ids, each of a job of its own, and ends the running ones before them.

    Each lasts a minute on one of the GPUs, and the next one there follows 0.2 s later.
    """
    began, ids = 1_700_000_000.0, range(first, first + count)
    times = {n: began + n // _GPUS * 60.2 for n in ids}
    last = first + count - _RUNNING
    with store.db.transaction() as db:
        db.execute("UPDATE attempt SET state = 'closed', outcome = 'completed', ended_at = created_at + 60"
                   " WHERE outcome IS NULL")  # fmt: skip
        db.executemany(
            "INSERT INTO job (id, source, kind, identity, text, spec, spec_key, priority, position, state,"
            " outcome, created_at, queued_at, submitted_at)"
            " VALUES (?1, 'bench', 'command', 'x', 'true', '{}', '', 200, ?1, ?2, ?3, ?4, ?4, ?4)",
            [(n, *(("finished", "completed") if n < last else ("running", None)), began) for n in ids],
        )
        db.executemany(
            "INSERT INTO attempt (id, job_id, number, token, boot_id, state, executor, launch_deadline_boot,"
            " outcome, created_at, submitted_at, started_at, ended_at)"
            " VALUES (?1, ?1, 1, ?1, 'b', ?2, 'direct', 0, ?3, ?4, ?5, ?4 + 0.05, ?6)",
            [
                (n, *(("closed", "completed") if n < last else ("running", None)), at, began,
                 at + 60 if n < last else None)
                for n, at in times.items()
            ],
        )  # fmt: skip
        db.executemany(
            "INSERT INTO allocation (attempt_id, ordinal, gpu, share, whole) VALUES (?, 0, ?, 1000, 1)",
            [(n, f"GPU-{n % _GPUS}") for n in ids],
        )


if __name__ == "__main__":
    main()
