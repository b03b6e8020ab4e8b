"""A pretend evaluation, which makes one pass over a data set and prints a score."""

from __future__ import annotations

import zlib

import pretend


def main() -> None:
    options = pretend.parser("Pretends to evaluate a model.")
    options.add_argument("--dataset", default="test")
    options.add_argument("--fold", type=int, default=0)
    options.add_argument("--samples", type=int, default=20)
    args = options.parse_args()
    print("eval", flush=True)
    pretend.announce(args)
    with pretend.memory(pretend.memory_of(args.llm), load=40.0):
        for _ in pretend.steps(args.dataset, args.samples, args.step):
            pass
    score = zlib.crc32(f"{args.llm} {args.dataset} {args.fold}".encode()) % 400 / 1000 + 0.6
    print(f"accuracy on {args.dataset}: {score:.3f}", flush=True)


if __name__ == "__main__":
    main()
