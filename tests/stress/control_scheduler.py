"""Negative control: a scheduler that makes the usual mistakes. The stress tests must fail on it.

It spawns a job before it records it, treats a missing process as a success, and lets several instances run at
once. With --wrapped, a shell around each job records the exit code. A shell that ends without recording one
also counts as a success.

Usage: python -m tests.stress.control_scheduler JOBS_FILE STATE SLOTS [--drain] [--wrapped]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class ControlScheduler:
    """The scheduler. Its state is {"pid": …, "code": …} for each line."""

    def __init__(self, jobs_file: Path, state: Path, slots: int, wrapped: bool) -> None:
        self._jobs_file, self._path, self._slots, self._wrapped = jobs_file, state, slots, wrapped
        self._state: dict[str, dict[str, Any]] = json.loads(state.read_text()) if state.exists() else {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, drain: bool) -> None:
        """Runs every line of the jobs file. drain: return once all lines are done."""
        print("ready", flush=True)
        while True:
            lines = self._jobs_file.read_text().splitlines()
            for line, job in self._state.items():
                if job["code"] is None:
                    job["code"] = self._ended(line, job["pid"])
            running = sum(job["code"] is None for job in self._state.values())
            waiting = [line for line in lines if line not in self._state]
            if drain and not waiting and not running:
                self._save()
                return
            for line in waiting[: max(0, self._slots - running)]:
                self._start(line)
            self._save()
            time.sleep(0.005)

    def _start(self, line: str) -> None:
        command = line
        if self._wrapped:
            command = f"{line}; echo $? > {self._code_file(line)}"
        self._children[line] = subprocess.Popen(["sh", "-c", command], start_new_session=True)
        self._state[line] = {"pid": self._children[line].pid, "code": None}

    def _ended(self, line: str, pid: int) -> int | None:
        child = self._children.get(line)
        code = child.poll() if child else (None if os.path.exists(f"/proc/{pid}") else 0)
        if code is None or not self._wrapped:
            return code
        try:
            return int(self._code_file(line).read_text())
        except (OSError, ValueError):
            return 0

    def _code_file(self, line: str) -> Path:
        return self._path.with_name(f"code.{abs(hash_of(line))}")

    def _save(self) -> None:
        spare = self._path.with_suffix(f".{os.getpid()}")
        spare.write_text(json.dumps(self._state))
        os.replace(spare, self._path)


def hash_of(line: str) -> int:
    """Returns a hash of the line, which (unlike `hash`) is the same in every process."""
    return int.from_bytes(line.encode(), "big") % (2**61 - 1)


def main() -> None:
    """Runs the scheduler with the arguments from the command line."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    scheduler = ControlScheduler(Path(words[0]), Path(words[1]), int(words[2]), "--wrapped" in sys.argv)
    scheduler.run("--drain" in sys.argv)


if __name__ == "__main__":
    main()
