"""Negative control: a simple scheduler with a data directory, on which several parts must fail.

These are the parts that damage, copy or plant files, hide processes or lower limits. The scheduler has these
faults:

- It trusts its database wherever that is, and starts with a new one if it is missing.
- It locks a file that can be replaced by another with the same name, and opens files without checking their
  type.
- It forgets a stop that was requested before it was up.
- It finds the processes of a job by their environment alone.
- If a launch fails because no process can be started, it blames the job.
- It ends at the first file that it cannot read.

Usage: python -m tests.stress.simple_scheduler start [--drain], in the folder of its jobs.txt. A file `stop`
in its data directory asks it to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_scheduler.attempts.observe import sweep_once

DATA_DIR = Path("gpu_scheduler_state.d").absolute()
#: Number of GPUs. Each job gets one.
GPUS = 4
#: Number of launches after which a job counts as failed.
_TRIES = 5
#: Seconds from taking the lock to the first round.
_COMES_UP_S = 0.2


class SimpleScheduler:
    """The scheduler. `_jobs` has a dict for each line, with the keys n, state, gpu, code and tries.

    n: the number of the job; state: "waiting", "running" or "ended".
    """

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Any]] = {}
        self._runners: list[subprocess.Popen[bytes]] = []
        self._ending = False

    def run(self, *, drain: bool) -> int:
        """Schedules jobs until it is asked to end. Returns 1 at once if another scheduler is up."""
        (DATA_DIR / "runs").mkdir(parents=True, exist_ok=True)
        lock = os.open(DATA_DIR / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._load()
        time.sleep(_COMES_UP_S)
        (DATA_DIR / "stop").unlink(missing_ok=True)
        print("ready", flush=True)
        while not self._ending and not (DATA_DIR / "stop").exists():
            self._round()
            if drain and all(job["state"] == "ended" for job in self._jobs.values()):
                break
            time.sleep(0.01)
        return 0

    def _on_signal(self, number: int, frame: object) -> None:
        self._ending = True

    def _round(self) -> None:
        for name in ("gpu_scheduler_state.json", "llm_config.json"):
            if os.path.lexists(name):
                json.loads(Path(name).read_text() or "{}")
        for line in Path("jobs.txt").read_text().splitlines():
            self._jobs.setdefault(line, {"n": len(self._jobs) + 1, "state": "waiting", "tries": 0})
        for job in self._jobs.values():
            if job["state"] == "running":
                self._observe(job)
        taken = {job["gpu"] for job in self._jobs.values() if job["state"] == "running"}
        waiting = [line for line, job in self._jobs.items() if job["state"] == "waiting"]
        for line, gpu in zip(waiting, [gpu for gpu in range(GPUS) if gpu not in taken], strict=False):
            self._start(line.partition("] ")[2] or line, self._jobs[line], gpu)
        self._save()

    def _observe(self, job: dict[str, Any]) -> None:
        """Updates a running job. As long as its runner lives, the runner holds a lock on the claim."""
        for runner in self._runners:
            runner.poll()
        folder = DATA_DIR / "runs" / str(job["n"]) / "1"
        claim = json.loads((folder / "claim").read_text())
        with contextlib.suppress(OSError), open(folder / "claim") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if (folder / "result").exists():
                job.update(state="ended", code=int((folder / "result").read_text()))
            elif not sweep_once(folder, claim["token"], signal.SIGKILL):
                # A job that has ended without a result is tried again.
                job.update(state="waiting", tries=job["tries"] + 1)

    def _start(self, line: str, job: dict[str, Any], gpu: int) -> None:
        folder = DATA_DIR / "runs" / str(job["n"]) / "1"
        folder.mkdir(parents=True, exist_ok=True)
        token = os.urandom(16).hex()
        (folder / "claim").unlink(missing_ok=True)
        fd = os.open(folder / "claim", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        result = folder / "result"
        runner = f"bash -c '{line}' {fd}>&-; echo $? > {result}.new; mv {result}.new {result}"
        env = {**os.environ, "GPU_SCHEDULER_TOKEN": token, "CUDA_VISIBLE_DEVICES": str(gpu)}
        try:
            process = subprocess.Popen(["bash", "-c", runner], pass_fds=[fd], start_new_session=True, env=env)
            self._runners.append(process)
            os.write(fd, json.dumps({"token": token, "pid": process.pid}).encode())
            job.update(state="running", gpu=gpu)
        except OSError:
            job["tries"] += 1
            if job["tries"] >= _TRIES:
                job.update(state="ended", code=1)
        finally:
            os.close(fd)

    def _load(self) -> None:
        if (DATA_DIR / "scheduler.db").exists():
            self._jobs = json.loads((DATA_DIR / "scheduler.db").read_text() or "{}")

    def _save(self) -> None:
        spare = DATA_DIR / f"scheduler.db.{os.getpid()}"
        spare.write_text(json.dumps(self._jobs))
        spare.replace(DATA_DIR / "scheduler.db")


if __name__ == "__main__":
    sys.exit(SimpleScheduler().run(drain="--drain" in sys.argv))
