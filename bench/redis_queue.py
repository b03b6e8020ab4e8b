"""Measures a queue in Redis: the jobs per second of one and of three boxes, and the commands of idle boxes.

`python -m bench.redis_queue [--jobs 300] [--rounds 3]` starts a redis-server, and schedulers with four
simulated GPUs each. The items are in the queue before a box takes the first one. The time runs from the first
job's first instruction to the last job's. A script counts as one command.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from bench.scheduler import HERE, Scheduler
from bench.table import Row, format_table
from gpu_scheduler.redis_queue.queue import Queue, new_item

_BOXES = (1, 3)
_IDLE_S, _TIMEOUT_S = 30.0, 300.0
_MEMORY_MB = 4000


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.redis_queue", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for boxes in _BOXES:
        found = [measure(boxes, options.jobs) for _ in range(options.rounds)]
        rates, idle = zip(*found, strict=True)
        name = "1 box" if boxes == 1 else f"{boxes} boxes"
        rows.append(Row(f"{options.jobs} items drained by {name}", "jobs/s", "", [rates]))
        rows.append(Row(f"idle, {name}: commands for each box", "1/s", "< 5", [idle]))
    print(format_table([str(HERE)], rows), flush=True)


def measure(boxes: int, jobs: int) -> tuple[float, float]:
    """Returns the jobs per second, and the commands per second of each box after the last job."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="bq"))
        folder = Path(name)
        url, client = f"unix://{folder}/s", redis.Redis(unix_socket_path=f"{folder}/s")
        server = subprocess.Popen(
            ["redis-server", *("--port", "0", "--unixsocket", f"{folder}/s", "--dir", name, "--save", "")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(server.wait, 30)
        stack.callback(server.terminate)
        _until(lambda: _answers(client), "redis-server answers")
        script, times = folder / "job.sh", folder / "times"
        script.write_text(f"#!/bin/bash\necho $EPOCHREALTIME >> {times}\n")
        script.chmod(0o755)
        queue = Queue(url)
        for _ in range(jobs):
            queue.submit(new_item(str(script), _MEMORY_MB, 1, 200), None)
        for _ in range(boxes):
            stack.enter_context(Scheduler(HERE, "--simulate=4", "--redis", url))
        _until(lambda: times.exists() and len(times.read_text().split()) >= jobs, "the jobs have run")
        stamps = sorted(float(text.replace(",", ".")) for text in times.read_text().split())
        _until(lambda: client.scard("gpusched:claims") == 0, "the ends are written back")
        return (jobs - 1) / (stamps[-1] - stamps[0]), _idle_rate(client) / boxes


def _idle_rate(client: Any) -> float:
    found = []
    with client.monitor() as monitor:
        end = time.monotonic() + _IDLE_S
        while time.monotonic() < end and monitor.connection.can_read(timeout=end - time.monotonic()):
            found.append(monitor.next_command())
    return sum(one["client_type"] != "lua" for one in found) / _IDLE_S


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def _until(condition: Any, what: str) -> None:
    end = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {_TIMEOUT_S:.0f} s: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
