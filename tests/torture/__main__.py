"""The torture from the command line: python -m tests.torture [P1 P3 …] [--size suite|full|FACTOR]

Prints a line for each part with its figures; exit code 0 if every one of ours is clean and every naive twin
is not. --seed repeats a run. --out FILE keeps the figures, for `python -m tests.torture.report`.
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

from tests.torture.carry import Job, carry_out
from tests.torture.parts import PARTS, Part


def jobs_of(words: list[str], size: str, seed: int) -> list[Job]:
    """What is to be done. words: promises or parts of names; none = all."""
    jobs = []
    for index, part in enumerate(PARTS):
        if words and not any(_is_meant(part, word) for word in words):
            continue
        factor = part.suite if size == "suite" else 1.0 if size == "full" else float(size)
        if factor is not None:
            jobs.append(Job(index, factor, False, seed))
        if part.naive is not None:
            jobs.append(Job(index, part.naive, True, seed))
    return jobs


def _is_meant(part: Part, word: str) -> bool:
    return word.upper() in part.promise.split() or word.lower() in part.name.lower()


def main() -> int:
    """As the module says."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="P1, P2 …, or words of a name; default: all")
    parser.add_argument("--size", default="suite", help="suite, full, or a factor of the full size, as 0.1")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=3, help="how many parts run side by side")
    parser.add_argument("--out", help="a file for the figures, as JSON")
    args = parser.parse_args()
    jobs = jobs_of(args.parts, args.size, args.seed)
    if not jobs:
        parser.error(f"no part is meant by {' '.join(args.parts)}: {', '.join(map(str, PARTS))}")
    print(f"seed {args.seed}, size {args.size}", flush=True)
    done = []
    # Spawned: a process that is forked from this one would share its pools and pipes.
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(carry_out, job) for job in jobs]):
            done.append(future.result())
            print(done[-1], flush=True)
    if args.out:
        result = {"seed": args.seed, "size": args.size, "date": time.strftime("%Y-%m-%d")}
        parts = [asdict(one) for one in sorted(done, key=lambda one: (one.promise, one.name, one.naive))]
        Path(args.out).write_text(json.dumps({**result, "parts": parts}, indent=1) + "\n")
    return 0 if all(one.good for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())
