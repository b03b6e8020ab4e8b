"""Measures `top` on a long queue: the time from a key to its frame.

`python -m bench.top [--jobs 10000] [--presses 200]`. A scheduler with four simulated GPUs runs. `top`
runs on a pseudo-terminal, once with 80x24 and once with 200x50 characters. Every key shows the next page.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from bench.scheduler import HERE, Scheduler, environment
from bench.table import Row, format_table


def main() -> None:
    """Measures both sizes of the terminal and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.top", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--presses", type=int, default=200)
    args = parser.parse_args()
    rows = []
    with Scheduler(HERE, "--simulate=4") as scheduler:
        lines = (f"[name=n{one} gpus=4 exclusive] sleep 99999\n" for one in range(1, args.jobs + 1))
        scheduler.jobs.write_text("".join(lines))
        scheduler.wait_until_printed("starts on gpu", timeout_s=600)
        for columns, height in ((80, 24), (200, 50)):
            read_s, quiet, busy = measure(scheduler.folder, columns, height, args)
            for label, values in (("quiet", quiet), ("while 1,000 jobs change", busy)):
                slowest = f"slowest {max(values):.0f}, goal 200"
                rows.append(Row(f"{columns}x{height} key to frame, {label}", "ms", slowest, [values]))
            rows.append(Row(f"{columns}x{height} all jobs read", "s", "", [[read_s]]))
        command(scheduler.folder, "stop", "--jobs", "--grace=0").wait()
    print(format_table([f"{args.jobs:,} jobs"], rows), flush=True)


def command(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Starts a command in the folder of the scheduler."""
    words = (sys.executable, "-m", "gpu_scheduler", *words)
    return subprocess.Popen(words, cwd=folder, env=environment(HERE, folder), stdout=subprocess.DEVNULL)


def measure(
    folder: Path, columns: int, height: int, args: argparse.Namespace
) -> tuple[float, list[float], list[float]]:
    """Returns the seconds to read all jobs, and the milliseconds of keys while nothing and much happens."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
    began, said = time.perf_counter(), ""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "top"],
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment(HERE, folder), "TERM": "xterm-256color"},
    )  # fmt: skip

    def wait_for(pattern: str) -> None:
        nonlocal said
        while not re.search(pattern, said):
            assert select.select([ours], [], [], 60)[0], said[-2000:]
            said += re.sub(r"\x1b\[[0-9;?<>=]*[A-Za-z]", "", os.read(ours, 1 << 16).decode(errors="replace"))

    def presses() -> Iterator[float]:
        nonlocal said
        page = height - 9  # without the first and the last line, the GPUs and their titles, and two rows
        for press in range(1, args.presses + 1):
            said, key = "", time.perf_counter()
            os.write(ours, b"\x1b[6~")
            wait_for(f"n{1 + press * page} ")
            yield 1000 * (time.perf_counter() - key)

    try:
        wait_for(r"scheduler pid \d+ +\d\d:")
        read_s = time.perf_counter() - began
        quiet, said = list(presses()), ""
        os.write(ours, b"g")
        wait_for(" n1 ")
        change = command(folder, "hold", f"{args.jobs - 999}-{args.jobs}")
        busy = list(presses())
        change.wait()
        command(folder, "release", f"{args.jobs - 999}-{args.jobs}").wait()
        return read_s, quiet, busy
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


if __name__ == "__main__":
    main()
