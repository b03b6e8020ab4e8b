"""Tries every combination of two settings as jobs, shows each score as it arrives, and prints the best.

python3 examples/sweep.py                       # the queue of this folder
python3 examples/sweep.py http://box:8000       # a queue on another machine; its token in QUEUE_TOKEN
"""

from __future__ import annotations

import os
import re
import sys

from gpu_scheduler import Client

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "score.py")


def main() -> None:
    client = Client(sys.argv[1] if sys.argv[1:] else None, os.environ.get("QUEUE_TOKEN"))
    jobs = client.map(
        SCRIPT, "--lr", "{lr}", "--layers", "{layers}",
        grid={"lr": [0.1, 0.01, 0.001], "layers": [2, 4]}, name="sweep", vram="2G",
    )  # fmt: skip
    scores = {}
    for job in client.as_completed(jobs):
        found = re.search(r"^score: (\S+)", job.log(), re.MULTILINE)
        if found is None:
            print(f"job {job.id} printed no score: {job.result().reason}")
            continue
        scores[job] = float(found[1])
        print(f"{job.name}: {found[1]}")
    best = min(scores, key=scores.__getitem__)
    print(f"best: {best.name} with {scores[best]}")


if __name__ == "__main__":
    main()
