"""A pretend training run: epochs of steps, a falling loss, memory on the simulated GPUs."""

from __future__ import annotations

import math

import pretend


def main() -> None:
    options = pretend.parser("Pretends to train a model.")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--steps", type=int, default=12, help="steps in an epoch")
    options.add_argument("--lr", type=float, default=0.001)
    options.add_argument("--layers", default="all", help="which layers, such as 1,2,3")
    options.add_argument("--note", default="")
    args = options.parse_args()
    print("train", flush=True)
    pretend.announce(args)
    with pretend.memory(pretend.memory_of(args.llm)):
        for epoch in range(1, args.epochs + 1):
            for _ in pretend.steps(f"epoch {epoch}/{args.epochs}", args.steps, args.step):
                pass
            print(f"epoch {epoch}: loss {2 * math.exp(-epoch / 3):.3f}", flush=True)


if __name__ == "__main__":
    main()
