"""Starts, kills and drains schedulers in one folder, and reads their output and status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_scheduler.cli import main
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.stress.part import Order
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def environment(root: Path = ROOT) -> dict[str, str]:
    """Returns an environment in which Python can import the checkout from any folder."""
    return {**os.environ, "PYTHONPATH": str(root)}


def scheduler(folder: Path, *options: str, gpus: int = 4, program: str = "gpu_scheduler") -> list[str]:
    """Returns the command line that starts a scheduler with simulated GPUs and its logs in this folder.

    Jobs of the stress tests fail at random, so no GPU is suspect unless the options say otherwise.
    """
    logs = ["--log-dir", str(folder / "logs"), "--suspect-after", "0"]
    return [sys.executable, "-m", program, "start", "--simulate", str(gpus), *logs, *options]


def program_for(order: Order) -> str:
    """Returns the module to run: the real program or, at small sizes, one with a shorter launch deadline."""
    return "gpu_scheduler" if order.full_length else "tests.stress.short_deadlines"


class Stage:
    """A folder in which schedulers run. command: the program to run instead of the scheduler."""

    def __init__(
        self,
        folder: Path,
        gpus: int = 4,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.jobs_file = folder / "jobs.txt"
        self.trace = folder / "trace"
        self.output_file = folder / "scheduler.out"
        self.home = DataDir.of(str(folder / "gpu_scheduler_state.json"))
        self.env = dict(env or environment())
        self._command = list(command or scheduler(folder, gpus=gpus))
        #: A wrapper command, such as `setpriv`, that runs the scheduler.
        self.prefix: list[str] = []

    def start(self, *options: str, ready: bool = True) -> subprocess.Popen[bytes]:
        """Starts a scheduler. ready: whether to wait until the scheduler reports that it is up."""
        with self.output_file.open("ab") as out:
            at = out.tell()
            process = subprocess.Popen(
                [*self.prefix, *self._command, *options],
                cwd=self.folder, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if ready:
            self.until_up(process, at)
        return process

    def until_up(self, process: subprocess.Popen[bytes], at: int = 0) -> None:
        """Waits until a scheduler reports, in its output from byte `at` on, that it is up."""

        def is_up() -> bool:
            assert process.poll() is None, f"the scheduler ended: {self.output_file.read_text()[-2000:]}"
            with self.output_file.open("rb") as out:
                out.seek(at)
                output = out.read()
            return b"scheduler up" in output or b"ready" in output

        wait_for(is_up, "scheduler up", timeout_s=60, every_s=0.002)

    def append(self, lines: Sequence[str]) -> None:
        """Appends lines to the jobs file in one write, as `echo … >> jobs.txt` does."""
        fd = os.open(self.jobs_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(fd)

    def drain(self, timeout_s: float, *options: str) -> int:
        """Runs a scheduler until no job is left that can run; returns its exit code."""
        with self.output_file.open("ab") as out:
            return subprocess.run(
                [*self.prefix, *self._command, "--drain", *options],
                cwd=self.folder, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                timeout=timeout_s, check=False,
            ).returncode  # fmt: skip

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs one command of the program in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", *words],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Returns the parsed output of `status --json --all`."""
        code, output = self.run_cli("status", "--json", "--all")
        assert code == 0, output
        found: dict[str, Any] = json.loads(output)
        return found

    def run_cli(self, *words: str) -> tuple[int, str]:
        """Runs a command in this process, to avoid starting an interpreter. Returns (exit code, output)."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main([*words, "--state-file", str(self.home.state_file)])
        return code, output.getvalue()

    def store(self) -> Store:
        """Opens the store as a front end does. The caller must close it."""
        return Store(self.home)


def newest_attempts(home: DataDir, jobs: int) -> list[Path]:
    """Returns the attempt folders of the newest `jobs` jobs, if they have a spec."""
    newest = sorted((path for path in home.runs.iterdir()), key=lambda path: int(path.name))[-jobs:]
    return [path for job in newest for path in sorted(job.iterdir()) if (path / "spec.json").exists()]


def runner_pids(folder: Path, data: str = "gpu_scheduler_state.d") -> list[int]:
    """Returns the pids of this folder's live runners that hold a claim."""
    return [pid for pid, _ in runners_of(folder, data)]


def runners_of(folder: Path, data: str = "gpu_scheduler_state.d") -> list[tuple[int, Path]]:
    """Returns (pid, attempt folder) of this folder's live runners that hold a claim."""
    found = []
    for claim in (folder / data / "runs").glob("*/*/claim"):
        if not (claim.parent / "result").exists():
            try:
                pid = int(json.loads(claim.read_text())["pid"])
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (OSError, ValueError, KeyError):
                continue
            if str(claim.parent).encode() in command:
                found.append((pid, claim.parent))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Signals a process; returns False if it has already ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def pause(seconds: float) -> None:
    """Sleeps to reach a random moment of the test. Must not be used to wait for an event."""
    time.sleep(seconds)
