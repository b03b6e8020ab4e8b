"""Submits jobs in every way that users can, and records each acknowledgement.

Usage: python -m tests.stress.submit ACKS, in the folder of the scheduler. Each line of standard input is a
JSON object {"n": number, "way": "file"|"add"|"insert", "line": what to run, "args": the arguments for `add`}.
Once a job has been accepted, "N WAY" is appended to the file ACKS. From then on, the job must not be lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store

SCRIPT = "trace.py"


def main() -> int:
    """Submits jobs until standard input ends; returns 1 if a job was refused."""
    store = Store(DataDir.of("gpu_scheduler_state.json"))
    refused = 0
    with open(sys.argv[1], "a") as acks:
        for text in sys.stdin:
            job = json.loads(text)
            problem = _submit(store, job)
            if problem is None:
                acks.write(f"{job['n']} {job['way']}\n")
                acks.flush()
            else:
                print(f"job {job['n']} was refused by {job['way']}: {problem}", file=sys.stderr)
                refused = 1
    store.close()
    return refused


def _submit(store: Store, job: dict[str, Any]) -> str | None:
    if job["way"] == "insert":
        line = job["line"]
        folder = str(Path.cwd())
        store.insert_job(JobSpec("command", line, folder, command=line, share=500), "stress")
        store.data_dir.ring_doorbell()
        return None
    if job["way"] == "add":
        done = subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", "add", SCRIPT, "--args", job["args"]],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return None if done.returncode == 0 else done.stderr
    fd = os.open("jobs.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, f"[share=0.5] {job['line']}\n".encode())
    finally:
        os.close(fd)
    return None


if __name__ == "__main__":
    sys.exit(main())
