"""Runs the stress tests from the command line: python -m tests.stress [P1 P3 …] [--size suite|full|FACTOR]

Prints one line with figures for each part. Exits with 0 if no part has faults and every negative control has
some. --seed repeats a run. --out FILE keeps the figures for `python -m tests.stress.report`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.stress.execute import PartRun, run_part
from tests.stress.parts import PARTS, Part
from tests.stress.report import skipped_text


def jobs_of(words: list[str], size: str, seed: int) -> list[PartRun]:
    """Returns the runs that the words select. words: promises or parts of names; if empty, all parts run."""
    jobs = []
    for index, part in enumerate(PARTS):
        if words and not any(_is_meant(part, word) for word in words):
            continue
        factor = part.suite if size == "suite" else 1.0 if size == "full" else float(size)
        if factor is not None:
            jobs.append(PartRun(index, factor, False, seed))
        if part.control is not None:
            jobs.append(PartRun(index, part.control, True, seed))
    return jobs


def _is_meant(part: Part, word: str) -> bool:
    return word.upper() in part.promise.split() or word.lower() in part.name.lower()


def main() -> int:
    """Runs the parts that the command line selects; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="P1, P2 …, or part of a name (default: all)")
    parser.add_argument("--size", default="suite", help="suite, full, or a fraction such as 0.1")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=3, help="number of parts to run in parallel")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    args = parser.parse_args()
    jobs = jobs_of(args.parts, args.size, args.seed)
    if not jobs:
        parser.error(f"no part matches {' '.join(args.parts)}; the parts are: {', '.join(map(str, PARTS))}")
    print(f"seed {args.seed}, size {args.size}", flush=True)
    done = []
    # Spawn the workers, because forked ones would share the pools and pipes of this process.
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_part, job) for job in jobs]):
            done.append(future.result())
            print(done[-1], flush=True)
    parts = [asdict(one) for one in sorted(done, key=lambda one: (one.promise, one.name, one.is_control))]
    print("".join(f"{line}\n" for line in skipped_text(parts)), end="", flush=True)
    if args.out:
        result = {"seed": args.seed, "size": args.size, "date": time.strftime("%Y-%m-%d")}
        Path(args.out).write_text(json.dumps({**result, "parts": parts}, indent=1) + "\n")
    return 0 if all(one.good for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())
