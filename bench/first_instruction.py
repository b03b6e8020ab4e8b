"""Measures how long an idle scheduler takes from an appended line to the first instruction of its job.

`python -m bench.first_instruction [--tree PATH ...] [--rounds 20]`. Rounds of several checkouts alternate, so
that other load on the machine affects all of them equally. The last line of the table is the time that a bare
interpreter and then two shells need on the same machine; no runner can be faster than that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.scheduler import COMPLETED, Scheduler, measure_in_turn, parse_arguments, read_timestamp
from bench.table import Row, format_table

GOALS = {"direct": "<= 30", "screen": "<= 40"}


def main() -> None:
    """Measures both executors and prints the table."""
    args = parse_arguments("first_instruction", __doc__, 20)
    rows = [measure(kind, args.trees, args.rounds) for kind in GOALS]
    bare = [measure_bare_chain() for _ in range(args.rounds)]
    rows.append(Row("bare interpreter, shells", "ms", "", [bare] + [[] for _ in args.trees[1:]]))
    print(format_table([str(tree) for tree in args.trees], rows), flush=True)


def measure(kind: str, trees: list[Path], rounds: int) -> Row:
    """Returns the time of each round in each checkout, in milliseconds."""
    values = measure_in_turn(trees, rounds, kind, 4, _round)
    return Row(f"append to first instruction, {kind}", "ms", GOALS[kind], values)


def _round(scheduler: Scheduler, number: int) -> list[float]:
    path = scheduler.folder / f"first{number}"
    began = scheduler.append([f"[share=0.25] echo $EPOCHREALTIME > {path}"])
    scheduler.wait_until_printed(COMPLETED, number + 1)
    return [(read_timestamp(path) - began) * 1000]


def measure_bare_chain() -> float:
    """Returns the milliseconds that a bare interpreter and then two shells need."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    subprocess.run(["bash", "-c", "exec bash -c :"], check=True)
    return (time.monotonic() - began) * 1000


if __name__ == "__main__":
    main()
