"""`python -m tests.torture --kills 60 --jobs 200 --seed 1`: both executors, then the naive variant."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.harness import Plan, Variant, torture


def main() -> int:
    """Print one line per variant; exit 0 if ours are clean and the naive one is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--runner-kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--variant", choices=["direct", "screen", "naive"], action="append")
    args = parser.parse_args()
    print(
        f"seed {args.seed}, {args.kills} kills, {args.jobs} jobs, {args.runner_kills} runner kills",
        flush=True,
    )
    good = True
    variants: list[Variant] = args.variant or ["direct", "screen", "naive"]
    for variant in variants:
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            began = time.monotonic()
            verdict = torture(
                Plan(variant, args.jobs, args.kills, args.seed, args.runner_kills), Path(folder)
            )
            print(f"{variant}: {verdict} in {time.monotonic() - began:.0f} s", flush=True)
            for text in verdict.wrong:
                print(f"  {text}")
            good &= verdict.clean != (variant == "naive")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
