"""Measures what clients of the API cost the scheduler, and how quickly they get their pages.

`python -m bench.api [--clients 50] [--streams 20] [--minutes 0.5] [--rounds 1]` prints a table of medians. In
each round, a scheduler with 10,000 waiting jobs starts 200 further jobs a minute, first without clients, then
with them. Each client reads one page every 2 s, over a new connection; the streams are those of the events.
The full size is `--minutes 10 --rounds 3`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.queue import main_thread_ms
from bench.scheduler import HERE, Scheduler, environment, read_timestamp
from bench.table import Row, format_table
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store

_STATE = "--state-file=gpu_scheduler_state.json"
_AS_ROOT = ["--as-root"] if os.geteuid() == 0 else []
_QUEUED = 10_000
_JOBS_PER_MINUTE = 200
_SETTLE_S, _TIMEOUT_S = 3.0, 60.0

#: Those about pages and events come last, because there are none without clients.
ROWS = (
    ("submission to first instruction, median", "ms", "with clients <= 120 %"),
    ("submission to first instruction, p95", "ms", ""),
    ("peak resident memory of serve", "MB", "< 120"),
    ("processor time of serve", "s", ""),
    ("processor time of the scheduler's main thread", "s", ""),
    ("page, median", "ms", ""),
    ("page, p95", "ms", "<= 50"),
    ("pages", "", ""),
    ("events that all streams got", "", ""),
)


def main() -> int:
    """Measures and prints the table; returns 1 if a page was not answered with 200."""
    parser = argparse.ArgumentParser(prog="python -m bench.api", description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--streams", type=int, default=20, help="number of open event streams (default: 20)")
    parser.add_argument("--minutes", type=float, default=0.5, help="length of each run (default: 0.5)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    columns = {"without clients": (0, 0), "with clients": (options.clients, options.streams)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in columns}
    failed = 0
    for _ in range(options.rounds):
        for name, (clients, streams) in columns.items():
            with ApiBench() as bench:
                found[name].append(bench.measure(clients, streams, options.minutes))
                failed += bench.failed
    rows = [
        Row(name, unit, goal, [[run[name] for run in runs if name in run] for runs in found.values()])
        for name, unit, goal in ROWS
    ]
    print(
        f"{options.clients} clients, {options.streams} streams, {options.minutes:g} min, {_QUEUED:,} queued"
    )
    print(format_table(list(columns), rows), flush=True)
    without, beside = (statistics.median(run[ROWS[0][0]] for run in runs) for runs in found.values())
    print(f"to the first instruction, with clients: {beside / without - 1:+.1%}; failed pages: {failed}")
    return 1 if failed else 0


class ApiBench:
    """A scheduler with a long queue that waits for a paused GPU, and a server of this queue."""

    def __enter__(self) -> ApiBench:
        self.failed = 0
        with ExitStack() as stack:
            self._scheduler = stack.enter_context(Scheduler(HERE, "--simulate=5", _STATE))
            self._folder = self._scheduler.folder
            self._fill_queue()
            self._token = self._command("token", "create", "bench").strip()
            self._serve, self._port = self._start_server(stack)
            self._stack = stack.pop_all()
        time.sleep(_SETTLE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _fill_queue(self) -> None:
        """Pauses a GPU and inserts the jobs that wait for it."""
        self._command("pause", "4")
        with closing(Store(DataDir.of(str(self._folder / "gpu_scheduler_state.json")))) as store:
            with store.db.transaction():
                for number in range(_QUEUED):
                    text = f"python train.py --seed {number}"
                    spec = JobSpec("command", text, str(self._folder), command=text, share=1000, allowed=(4,))
                    store.insert_job(spec, "bench")
            store.data_dir.ring_doorbell()

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpu_scheduler", *words, _STATE]

    def _command(self, *words: str) -> str:
        return subprocess.run(
            self._argv(*words), cwd=self._folder, env=environment(HERE, self._folder), check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    def _start_server(self, stack: ExitStack) -> tuple[int, int]:
        """Starts a server. Returns its pid and its port, which its banner names."""
        output = self._folder / "serve.out"
        with output.open("wb") as out:
            process = stack.enter_context(
                subprocess.Popen(
                    self._argv("serve", "--port=0", *_AS_ROOT), cwd=self._folder, stdin=subprocess.DEVNULL,
                    env=environment(HERE, self._folder), stdout=out, stderr=out,
                )
            )  # fmt: skip
        stack.callback(process.terminate)
        end = time.monotonic() + _TIMEOUT_S
        while not (banner := re.search(r"http://[^:]+:(\d+)", output.read_text())):
            if time.monotonic() > end or process.poll() is not None:
                raise SystemExit(f"serve does not run: {output.read_text()}")
            time.sleep(0.01)
        return process.pid, int(banner[1])

    def measure(self, clients: int, streams: int, minutes: float) -> dict[str, float]:
        """Starts jobs for some minutes beside these clients. Returns the value of each row."""
        count = round(minutes * _JOBS_PER_MINUTE)
        pid = self._scheduler.process.pid
        order = {"port": self._port, "token": self._token, "clients": clients, "streams": streams}
        with subprocess.Popen(
            [sys.executable, "-m", "bench.api_clients"], cwd=HERE, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{json.dumps(order)}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            serve_s, loop_ms = _cpu_s(self._serve), main_thread_ms(pid)
            latencies = self._run_jobs(count)
            serve_s, loop_ms = _cpu_s(self._serve) - serve_s, main_thread_ms(pid) - loop_ms
            answers: dict[str, Any] = json.loads(process.communicate()[0])
        self.failed = answers["failed"]
        pages = answers["pages"]
        values = [statistics.median(latencies), _p95(latencies)]
        values += [_peak_mb(self._serve), serve_s, loop_ms / 1000]
        if pages:
            values += [statistics.median(pages), _p95(pages), len(pages), answers["events"]]
        return dict(zip([name for name, _, _ in ROWS], values, strict=False))

    def _run_jobs(self, count: int) -> list[float]:
        """Submits jobs at equal intervals. Returns the ms from each submission to the first instruction."""
        paths, began, first = [self._folder / f"first{n}" for n in range(count)], [], time.monotonic()
        for n, path in enumerate(paths):
            time.sleep(max(0.0, first + n * 60 / _JOBS_PER_MINUTE - time.monotonic()))
            began.append(self._scheduler.append([f"[share=0.25] echo $EPOCHREALTIME > {path}"]))
        end = time.monotonic() + _TIMEOUT_S
        while not all(path.exists() and path.stat().st_size for path in paths):
            if time.monotonic() > end:
                raise SystemExit("not all jobs have run")
            time.sleep(0.05)
        return [(read_timestamp(path) - one) * 1000 for path, one in zip(paths, began, strict=True)]


def _p95(values: list[float]) -> float:
    return sorted(values)[round(0.95 * (len(values) - 1))]


def _cpu_s(pid: int) -> float:
    """Returns the processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
