"""A pretend inference run, which answers a number of prompts in batches."""

from __future__ import annotations

import pretend


def main() -> None:
    options = pretend.parser("Pretends to answer prompts.")
    options.add_argument("--batch_size", type=int, default=4)
    options.add_argument("--prompts", type=int, default=40)
    args = options.parse_args()
    print("inference", flush=True)
    pretend.announce(args)
    batches = max(1, -(-args.prompts // args.batch_size))
    with pretend.memory(pretend.memory_of(args.llm), load=60.0):
        for _ in pretend.steps("batch", batches, args.step * args.batch_size / 2):
            pass
    print(f"answered {args.prompts} prompts", flush=True)


if __name__ == "__main__":
    main()
