"""A pretend inference run: answers a number of prompts in batches."""

from __future__ import annotations

import pretend


def main() -> None:
    options = pretend.parser("Pretends to answer prompts.")
    options.add_argument("--batch_size", type=int, default=4)
    options.add_argument("--prompts", type=int, default=40)
    said = options.parse_args()
    print("inference", flush=True)
    pretend.announce(said)
    batches = max(1, -(-said.prompts // said.batch_size))
    with pretend.memory(pretend.memory_of(said.llm), load=60.0):
        for _ in pretend.steps("batch", batches, said.step * said.batch_size / 2):
            pass
    print(f"answered {said.prompts} prompts", flush=True)


if __name__ == "__main__":
    main()
