"""Replays a trace of jobs through the decisions of the scheduler, on a virtual clock.

`python -m bench.replay TRACE.csv`, or a generated trace: `stream LOAD MINUTES`, `batch JOBS`, or the name of
a mix. The table has a column for each queue order and each kind of run-time estimates.

A trace has one row for each job: submit_s, duration_s, and optionally gpus (1), share of each GPU (1) and
class. Jobs have equal priority, and run alone on their part of the GPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from bench.replay.estimates import KINDS
from bench.replay.generate import MIXES, batch, mix, stream
from bench.replay.replay import SLOWDOWN_BOUND_S, Figures, figures, replay
from bench.replay.trace import TraceJob, read_trace, write_trace
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings

ROWS = {
    "makespan_h": "makespan, h",
    "makespan": "makespan / lower bound",
    "mean_h": "mean wait, h",
    "median_h": "median wait, h",
    "worst_h": "worst wait, h",
    "multi_mean_h": "mean wait of multi-GPU jobs, h",
    "multi_median_h": "median wait of multi-GPU jobs, h",
    "multi_worst_h": "worst wait of multi-GPU jobs, h",
    "slowdown": f"mean slowdown (run times of at least {SLOWDOWN_BOUND_S:g} s)",
    "idle": "idle GPU time until the last end, %",
    "reserved_idle": "idle on reserved GPUs / delivered, %",
}
_PERCENT = ("idle", "reserved_idle")


def main(words: Sequence[str] | None = None) -> None:
    """Replays the trace under each combination and prints the table."""
    options = _parser().parse_args(words)
    try:
        for seed in options.seeds:
            jobs = _jobs(options, seed)
            if options.write:
                write_trace(jobs, sys.stdout)
                continue
            print(f"{' '.join(options.trace)}: {len(jobs)} jobs on {options.gpus} GPUs, seed {seed}")
            columns = {}
            for order, times in _combinations(options):
                settings = Settings(queue_order=order, aging=options.aging, idle_budget=options.idle_budget)
                outcome = replay(jobs, settings, times=times, gpus=options.gpus, seed=seed)
                name = order.value if order is QueueOrder.BACKFILL else f"{order.value} {times}"
                columns[name] = figures(jobs, outcome, options.gpus)
            print(table(columns), end="\n\n", flush=True)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def _combinations(options: argparse.Namespace) -> list[tuple[QueueOrder, str]]:
    """Returns each order with each kind of estimates. Backfill uses none, so it is played once."""
    found = [(QueueOrder.BACKFILL, "none")] if "backfill" in options.order else []
    return found + [(QueueOrder.RESERVE, times) for times in options.times if "reserve" in options.order]


def _jobs(options: argparse.Namespace, seed: int) -> list[TraceJob]:
    kind, *values = options.trace
    if kind == "stream":
        load, minutes, *_ = [float(value) for value in values] + [0.9, 15.0][len(values) :]
        return stream(load, seed, minutes=minutes, gpus=options.gpus)
    if kind == "batch":
        return batch(int(values[0]) if values else 200, seed)
    if kind in MIXES:
        return mix(kind, seed, gpus=options.gpus)
    return read_trace(Path(kind))


def table(columns: dict[str, Figures]) -> str:
    """Returns the table of these replays, by the heads of their columns."""
    lines = [["", *columns]]
    for field in fields(Figures):
        scale, digits = (100, 1) if field.name in _PERCENT else (1, 3 if field.name == "makespan" else 2)
        values = [f"{scale * getattr(column, field.name):.{digits}f}" for column in columns.values()]
        lines.append([ROWS[field.name], *values])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "trace",
        nargs="+",
        metavar="TRACE",
        help=f"a CSV file, stream [LOAD [MINUTES]], batch [JOBS], {', '.join(MIXES)}",
    )
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument(
        "--order", nargs="+", choices=[one.value for one in QueueOrder], default=["backfill", "reserve"]
    )
    parser.add_argument(
        "--times",
        nargs="+",
        choices=list(KINDS),
        default=["exact", "learned", "none"],
        help="estimates: exact; learned (wrong by a lognormal factor of sigma 1, 30 %% unknown); "
        "class (learned from earlier jobs of the class); none",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="of generated traces and of learned estimates"
    )
    parser.add_argument("--aging", type=int, default=Settings().aging)
    parser.add_argument("--idle-budget", type=float, default=Settings().idle_budget)
    parser.add_argument("--write", action="store_true", help="print the generated trace as CSV instead")
    return parser


if __name__ == "__main__":
    main()
