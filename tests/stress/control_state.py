"""Negative control: a program that overwrites edits of the state file.

It writes back what it read 0.1 s before, and treats a file that it cannot read as an empty one.

Usage: python -m tests.stress.control_state STATE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(path: Path) -> None:
    """Rewrites the file until the process is killed."""
    print("ready", flush=True)
    while True:
        try:
            paused = json.loads(path.read_text())["paused_gpus"]
        except (OSError, ValueError, KeyError):
            paused = []
        time.sleep(0.1)
        path.write_text(json.dumps({"gpu_status": [time.time()], "paused_gpus": paused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
