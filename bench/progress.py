"""Measures the processor time that reading the progress of running jobs costs.

`python -m bench.progress [--jobs 8] [--seconds 20]`. Each job draws a progress bar ten times a second and
writes a line once a second. Another run has jobs that write nothing. The scheduler's output is discarded,
so that it does not print that of the jobs. The goal is less than 10 ms per second, which is 1 % of a core.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.scheduler import HERE

TRAIN = """
import sys, time
for n in range(100_000):
    time.sleep(0.1)
    times = f"{n // 600:02d}:{n // 10 % 60:02d}<99:59, 10.00it/s"
    text = f"\\r {n // 1000:3d}%|{'#' * (n // 10_000):10s}| {n}/100000 [{times}]"
    sys.stderr.write(text if n % 10 else f"\\r{{'loss': 0.5, 'epoch': {n / 1000}}}\\n{text}")
    sys.stderr.flush()
"""
QUIET = "import time; time.sleep(3600)"


def main() -> None:
    """Measures both kinds of jobs and prints a line for each value."""
    parser = argparse.ArgumentParser(prog="python -m bench.progress", description=__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for kind, program in (("quiet", QUIET), ("training", TRAIN)):
        for label, value in _measure(program, options.jobs, options.seconds).items():
            print(f"{options.jobs} {kind} jobs: {label:35} {value:6.1f}", flush=True)


def _measure(program: str, jobs: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(program)
        (folder / "jobs.txt").write_text("".join(f"[name=j{n}] python3 -u train.py\n" for n in range(jobs)))
        scheduler = _command(
            folder, "start", "--log-dir=logs", f"--simulate={jobs}", stdout=subprocess.DEVNULL
        )
        try:
            board = folder / "logs/status.txt"
            _until(lambda: board.exists() and f"  {jobs} running" in board.read_text())
            time.sleep(3.0)
            begin = _threads_ms(scheduler.pid)
            time.sleep(seconds)
            end = _threads_ms(scheduler.pid)
            found = {"scheduler, ms per s": (sum(end.values()) - sum(begin.values())) / seconds}
            # The thread that reads the progress starts last.
            found["its progress thread, ms per s"] = (end[max(end)] - begin.get(max(end), 0.0)) / seconds
            times = [_timed(folder, "status") for _ in range(15)]
            found["`status`, ms"] = statistics.median(times)
            return found
        finally:
            _command(folder, "stop", "--jobs", "--grace", "0", stdout=subprocess.DEVNULL).wait(60)
            scheduler.terminate()
            scheduler.wait(60)


def _command(folder: Path, *words: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PYTHONPATH": str(HERE), "PATH": path, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", *words], cwd=folder, env=environment, stdout=stdout
    )


def _timed(folder: Path, *words: str) -> float:
    began = time.perf_counter()
    _command(folder, *words, stdout=subprocess.DEVNULL).wait(60)
    return (time.perf_counter() - began) * 1000


def _threads_ms(pid: int) -> dict[int, float]:
    """Returns the processor time of each thread in milliseconds, by thread id."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e6 for task in tasks}


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        if time.monotonic() > end:
            raise SystemExit("the jobs did not start within 60 s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
