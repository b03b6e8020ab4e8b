"""A pretend training run whose score, lower is better, depends on its settings. Used by the examples of the
client."""

from __future__ import annotations

import argparse
import math
import sys


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--lr", type=float, required=True)
    options.add_argument("--layers", type=int, required=True)
    args = options.parse_args()
    if args.layers > 6:
        sys.exit("out of memory")  # a failed trial
    score = (math.log10(args.lr) + 2) ** 2 + (args.layers - 4) ** 2 / 4
    for step in range(1, 4):
        print(f"step {step}: {score + 1 / step:.4f}", flush=True)
        if score > 6:
            print("pruned", flush=True)  # hopeless; no need for the other steps
            return
    print(f"score: {score:.4f}", flush=True)


if __name__ == "__main__":
    main()
