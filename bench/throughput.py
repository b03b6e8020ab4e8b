"""Measures jobs per second for 400 short commands on four GPUs, where each job has a whole GPU.

`python -m bench.throughput [--tree PATH ...] [--rounds 3]`. The time runs from the first job's first
instruction to the last job's first instruction. The lines are in the file before the scheduler starts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.scheduler import environment, parse_arguments
from bench.table import Row, format_table

GOALS = {"direct": ">= 90", "screen": ""}
JOBS = 400


def main() -> None:
    """Measures both executors and prints the table."""
    args = parse_arguments("throughput", __doc__, 3)
    rows = []
    for kind, goal in GOALS.items():
        values: list[list[float]] = [[] for _ in args.trees]
        for _ in range(args.rounds):
            for tree, found in zip(args.trees, values, strict=True):
                found.append(measure_throughput(tree, kind))
        rows.append(Row(f"{JOBS} one-line jobs on 4 GPUs, {kind}", "jobs/s", goal, values))
    print(format_table([str(tree) for tree in args.trees], rows), flush=True)


def measure_throughput(tree: Path, kind: str) -> float:
    """Returns how many jobs per second one run started."""
    options = ["--screen"] if kind == "screen" else []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        times = folder / "times"
        (folder / "jobs.txt").write_text(f"echo $EPOCHREALTIME >> {times}\n" * JOBS)
        with (folder / "out").open("wb") as out:
            subprocess.run(
                [
                    *(sys.executable, "-m", "gpu_scheduler", "start", "--simulate=4", "--drain"),
                    *("--log-dir=logs", *options),
                ],
                cwd=folder, env=environment(tree, folder),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True, timeout=300,
            )  # fmt: skip
        stamps = sorted(float(text.replace(",", ".")) for text in times.read_text().split())
    if len(stamps) != JOBS:
        raise SystemExit(f"{tree}: only {len(stamps)} of {JOBS} jobs ran")
    return (JOBS - 1) / (stamps[-1] - stamps[0])


if __name__ == "__main__":
    main()
