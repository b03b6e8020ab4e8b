"""A scheduler that is wrong on purpose: it spawns, then records, and takes a pid that is gone for a success.

The torture must be seen to fail on it. Usage: python -m tests.torture.naive JOBS_FILE STATE SLOTS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main(jobs_file: str, state_file: str, slots: int) -> None:
    """Run every line; ends when all are done."""
    path = Path(state_file)
    state = json.loads(path.read_text()) if path.exists() else {}
    children: dict[str, subprocess.Popen[bytes]] = {}

    def save() -> None:
        spare = path.with_suffix(".tmp")
        spare.write_text(json.dumps(state))
        os.replace(spare, path)

    print("ready", flush=True)
    while True:
        lines = Path(jobs_file).read_text().splitlines()
        for key, job in state.items():
            if job["code"] is not None:
                continue
            child = children.get(key)
            code = child.poll() if child else (None if os.path.exists(f"/proc/{job['pid']}") else 0)
            if code is not None:
                job["code"] = code
                save()
        running = sum(job["code"] is None for job in state.values())
        waiting = [line for line in lines if line not in state]
        if not waiting and not running and "--drain" in sys.argv:
            return
        for line in waiting[: max(0, slots - running)]:
            children[line] = subprocess.Popen(["sh", "-c", line], start_new_session=True)
            state[line] = {"pid": children[line].pid, "code": None}
        save()
        time.sleep(0.005)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
