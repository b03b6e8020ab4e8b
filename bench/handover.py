"""Measures the time between two jobs on one GPU, from one job's last instruction to the next job's first.

`python -m bench.handover [--tree PATH ...] [--rounds 5]`. A round has five such transitions. Rounds of
several checkouts alternate.
"""

from __future__ import annotations

from pathlib import Path

from bench.scheduler import COMPLETED, Scheduler, measure_in_turn, parse_arguments, read_timestamp
from bench.table import Row, format_table

GOALS = {"direct": "<= 25", "screen": "<= 35"}
PER_ROUND = 5


def main() -> None:
    """Measures both executors and prints the table."""
    args = parse_arguments("handover", __doc__, 5)
    rows = [measure(kind, args.trees, args.rounds) for kind in GOALS]
    print(format_table([str(tree) for tree in args.trees], rows), flush=True)


def measure(kind: str, trees: list[Path], rounds: int) -> Row:
    """Returns, for each checkout, the milliseconds from the end of each job to the start of the next."""
    values = measure_in_turn(trees, rounds, kind, 1, _round)
    return Row(f"end to next start, {kind}", "ms", GOALS[kind], values)


def _round(scheduler: Scheduler, number: int) -> list[float]:
    jobs = range(number * (PER_ROUND + 1), (number + 1) * (PER_ROUND + 1))
    first, last = scheduler.folder / "first", scheduler.folder / "last"
    scheduler.append(
        [f"echo $EPOCHREALTIME > {first}{n}; sleep 0.1; echo $EPOCHREALTIME > {last}{n}" for n in jobs]
    )
    # Poll rarely, because polling also loads this machine.
    scheduler.wait_until_printed(COMPLETED, jobs[-1] + 1, every_s=0.05)
    return [
        (read_timestamp(Path(f"{first}{n + 1}")) - read_timestamp(Path(f"{last}{n}"))) * 1000
        for n in jobs[:-1]
    ]


if __name__ == "__main__":
    main()
