"""A scheduler that is started, killed and drained again and again in one folder, and what it says there."""

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
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.torture.part import Order
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def environment(root: Path = ROOT) -> dict[str, str]:
    """The environment of a scheduler under test: the checkout importable from any folder."""
    return {**os.environ, "PYTHONPATH": str(root)}


def scheduler(folder: Path, *options: str, gpus: int = 4, program: str = "gpu_scheduler") -> list[str]:
    """The command line of a scheduler on simulated GPUs whose logs lie in this folder."""
    logs = ["--log-dir", str(folder / "logs")]
    return [sys.executable, "-m", program, "start", "--simulate", str(gpus), *logs, *options]


def program_for(order: Order) -> str:
    """The program itself at the full size; below it one that waits less for launches that failed."""
    return "gpu_scheduler" if order.long else "tests.torture.hasty"


class Stage:
    """One folder with its scheduler. command: another program to be tortured in its place."""

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
        self.out = folder / "scheduler.out"
        self.home = Home.of(str(folder / "gpu_scheduler_state.json"))
        self.env = dict(env or environment())
        self._command = list(command or scheduler(folder, gpus=gpus))
        #: A command that becomes the scheduler, such as `setpriv`.
        self.prefix: list[str] = []

    def start(self, *options: str, ready: bool = True) -> subprocess.Popen[bytes]:
        """A scheduler; ready: once it says that it is up."""
        with self.out.open("ab") as out:
            at = out.tell()
            process = subprocess.Popen(
                [*self.prefix, *self._command, *options],
                cwd=self.folder, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if ready:
            self.until_up(process, at)
        return process

    def until_up(self, process: subprocess.Popen[bytes], at: int = 0) -> None:
        """Wait until a scheduler says that it is up, in what was printed from byte `at` on."""

        def is_up() -> bool:
            assert process.poll() is None, f"the scheduler ended: {self.out.read_text()[-2000:]}"
            with self.out.open("rb") as out:
                out.seek(at)
                said = out.read()
            return b"scheduler up" in said or b"ready" in said

        wait_for(is_up, "scheduler up", timeout_s=60, every_s=0.002)

    def append(self, lines: Sequence[str]) -> None:
        """Append lines to the jobs file in one write, as `echo … >> jobs.txt` does."""
        fd = os.open(self.jobs_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(fd)

    def drain(self, timeout_s: float, *options: str) -> int:
        """Run a scheduler until nothing is left that could run; its exit code."""
        with self.out.open("ab") as out:
            return subprocess.run(
                [*self.prefix, *self._command, "--drain", *options],
                cwd=self.folder, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                timeout=timeout_s, check=False,
            ).returncode  # fmt: skip

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the program."""
        return subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", *words],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """`status --json --all`, read."""
        code, said = self.ask("status", "--json", "--all")
        assert code == 0, said
        found: dict[str, Any] = json.loads(said)
        return found

    def ask(self, *words: str) -> tuple[int, str]:
        """The exit code of a command and what it prints, in this process, which needs no new interpreter."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([*words, "--state-file", str(self.home.state_file)])
        return code, said.getvalue()

    def store(self) -> Store:
        """The record, as a front end opens it; to be closed."""
        return Store(self.home)


def newest_attempts(home: Home, jobs: int) -> list[Path]:
    """The folders of the attempts of the newest jobs that a runner can be started in."""
    newest = sorted((path for path in home.runs.iterdir()), key=lambda path: int(path.name))[-jobs:]
    return [path for job in newest for path in sorted(job.iterdir()) if (path / "spec.json").exists()]


def runner_pids(folder: Path, data: str = "gpu_scheduler_state.d") -> list[int]:
    """The pids of the live runners of this folder's jobs that hold their claim."""
    return [pid for pid, _ in runners_of(folder, data)]


def runners_of(folder: Path, data: str = "gpu_scheduler_state.d") -> list[tuple[int, Path]]:
    """The same, each with the folder of its attempt."""
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
    """Signal a process that may have ended meanwhile; whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def pause(seconds: float) -> None:
    """Let a random moment come: the torture's own dice, not a synchronisation."""
    time.sleep(seconds)
