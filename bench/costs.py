"""Counts what one short job costs the scheduler: rounds, statements, transactions, syncs and CPU time.

`python -m bench.costs [--tree PATH ...] [--rounds 3]`. It runs 400 jobs on four GPUs, each with a whole GPU.
It counts from the first round, and only what the thread of the rounds does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.scheduler import HERE, environment, parse_arguments
from bench.table import Row, format_table

JOBS = 400
_QUANTITIES = ("rounds", "reads", "writes", "pragmas", "transactions", "syncs")
_RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='counted')"


def main() -> None:
    """Measures the direct executor and prints the table."""
    args = parse_arguments("costs", __doc__, 3)
    found = [[measure_costs(tree) for tree in args.trees] for _ in range(args.rounds)]
    rows = [
        Row(f"{name} per job", unit, "<= 15" if name == "reads" else "", values)
        for name, unit in (*((one, "") for one in _QUANTITIES), ("cpu_ms", "ms"))
        for values in [[[one[n][name] for one in found] for n in range(len(args.trees))]]
    ]
    print(format_table([str(tree) for tree in args.trees], rows), flush=True)


def measure_costs(tree: Path) -> dict[str, float]:
    """Returns the costs per job of one run."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "jobs.txt").write_text("true\n" * JOBS)
        with (folder / "out").open("wb") as out:
            subprocess.run(
                [
                    *(sys.executable, "-c", _RUN, str(HERE / "bench" / "counted.py"), str(folder / "counts")),
                    *("start", "--simulate=4", "--drain", "--log-dir=logs"),
                ],
                cwd=folder, env=environment(tree, folder),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True, timeout=300,
            )  # fmt: skip
        counts = json.loads((folder / "counts").read_text())
    counts["cpu_ms"] = counts["cpu_us"] / 1000
    return {key: value / JOBS for key, value in counts.items()}


if __name__ == "__main__":
    main()
