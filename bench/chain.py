"""Measures a chain of jobs in which each job waits for the one before it.

`python -m bench.chain [--jobs 10000] [--runs 200] [--rounds 3]` prints a table of medians. The jobs are
inserted into the store while the only GPU is paused. Then the first job is cancelled, which skips all others,
and retried, which queues them again. At last the GPU is resumed, and the first jobs run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.queue import main_thread_ms
from bench.scheduler import HERE, Scheduler, environment
from bench.table import Row, format_table
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.store import Store

_WAKES = 50
_TIMEOUT_S = 300.0

MEASUREMENTS = (
    "insert the chain",
    "processor time of a wake-up with nothing to do",
    "the whole command `status`",
    "from `cancel` of the first job until all are skipped",
    "from `retry` of the first job until all are queued",
    "from one start to the next",
    "from one start to the next, without dependencies",
)


def main() -> None:
    """Measures the chain and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.chain", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="length of the chain (default: 10000)")
    parser.add_argument("--runs", type=int, default=200, help="number of jobs that run (default: 200)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = [measure(options.jobs, options.runs) for _ in range(options.rounds)]
    rows = [
        Row(name, "ms", "", [list(values)])
        for name, values in zip(MEASUREMENTS, zip(*found, strict=True), strict=True)
    ]
    print(format_table([f"chain of {options.jobs:,} jobs"], rows), flush=True)


def measure(jobs: int, runs: int) -> list[float]:
    """Returns the values of one round, in the order of MEASUREMENTS."""
    with ChainBench() as bench:
        found = [
            bench.insert(jobs, chained=True),
            bench.cost_of_a_wake_up(),
            bench.command("status"),
            bench.command("cancel", "1") + bench.time_until(lambda: bench.count("finished") == jobs),
            bench.command("retry", "1") + bench.time_until(lambda: bench.count("queued") == jobs),
            bench.time_between_starts(runs),
        ]
    with ChainBench() as bench:
        bench.insert(runs, chained=False)
        return [*found, bench.time_between_starts(runs)]


class ChainBench:
    """A scheduler with one paused GPU, and a front end of its store. All times are in milliseconds."""

    def __enter__(self) -> ChainBench:
        self._scheduler = Scheduler(HERE, "--simulate=1").__enter__()
        self._folder = self._scheduler.folder
        self._store = Store(DataDir.of(str(self._folder / "gpu_scheduler_state.json")))
        self.command("pause", "0")
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()
        self._scheduler.__exit__(None, None, None)

    def insert(self, jobs: int, *, chained: bool) -> float:
        """Inserts jobs, of which each waits for the one before it if `chained`."""
        command = f"echo $EPOCHREALTIME >> {self._folder}/times"
        spec = JobSpec("command", command, str(self._folder), command=command)
        began = time.monotonic()
        with self._store.db.transaction():
            last = self._store.insert_job(spec, "bench")
            for _ in range(jobs - 1):
                parent = [Dependency(last, DependencyKind.COMPLETED, str(last))] if chained else []
                last = self._store.insert_job(spec, "bench", dependencies=parent)
        return (time.monotonic() - began) * 1000

    def cost_of_a_wake_up(self) -> float:
        """Rings the doorbell some times, and returns the processor time of the scheduler for each."""
        time.sleep(2.0)  # until nothing is due
        before = main_thread_ms(self._scheduler.process.pid)
        for _ in range(_WAKES):
            self._store.data_dir.ring_doorbell()
            time.sleep(0.02)
        return (main_thread_ms(self._scheduler.process.pid) - before) / _WAKES

    def command(self, *words: str) -> float:
        """Runs a command of the scheduler."""
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", *words], check=True, stdout=subprocess.DEVNULL,
            cwd=self._folder, env=environment(HERE, self._folder),
        )  # fmt: skip
        return (time.monotonic() - began) * 1000

    def count(self, state: str) -> int:
        """Returns the number of jobs in this state."""
        return state_counts(self._store).get(state, 0)

    def time_until(self, done: Callable[[], bool]) -> float:
        """Waits until `done()`. Raises SystemExit at the timeout."""
        began = time.monotonic()
        while not done():
            if time.monotonic() > began + _TIMEOUT_S:
                raise SystemExit(
                    "gave up; the scheduler printed:\n" + (self._folder / "out").read_text()[-2000:]
                )
            time.sleep(0.002)
        return (time.monotonic() - began) * 1000

    def time_between_starts(self, jobs: int) -> float:
        """Resumes the GPU. Returns the mean time between the first instructions of the first `jobs` jobs."""
        self.command("resume", "0")
        times = self._folder / "times"
        self.time_until(lambda: len(_lines(times)) >= jobs)
        stamps = [float(line.replace(",", ".")) for line in _lines(times)]
        return (stamps[jobs - 1] - stamps[0]) * 1000 / (jobs - 1)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
