"""Runs `run`, `wait` and `gpus` as processes on fake GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_scheduler.config import ProbeKind
from tests import warm
from tests.fakes.machine import FakeGpu, FakeMachine
from tests.waiting import wait_for

SCHEDULER = [sys.executable, str(Path(__file__).parents[2] / "scheduler.py")]
TIMEOUT_S = 60


class Started:
    """A command that was started. Its stderr goes to a file that a test can read at any time."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self._stderr = os.memfd_create("stderr")
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **env},
            cwd=folder,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def stderr(self) -> str:
        """Returns what the command has written to stderr so far."""
        return os.pread(self._stderr, os.fstat(self._stderr).st_size, 0).decode()

    def wait_for_text(self, text: str) -> None:
        """Waits until the command has written this text to stderr."""
        wait_for(lambda: text in self.stderr(), f"{text!r} in stderr")

    def read_line(self) -> str:
        """Returns the next line that the command prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def finish(self) -> tuple[int, str]:
        """Closes stdin and waits for the end. Returns the exit code and the rest of stdout."""
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out.decode()

    def kill(self) -> None:
        """Kills the process with SIGKILL, unless it has ended, and collects it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=TIMEOUT_S)

    def close(self) -> None:
        """Kills the process and closes its streams."""
        self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        os.close(self._stderr)


class Box:
    """A machine with fake GPUs, in an empty working folder."""

    def __init__(self, kind: ProbeKind, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.machine = FakeMachine(kind, folder / "machine", patch)
        patch.setenv("GPU_SCHEDULER_SIM", str(self.machine.folder))
        self.folder = folder / "work"
        self.folder.mkdir()
        self._started: list[Started] = []

    def plant(self, *cards: FakeGpu, **world: object) -> None:
        """Sets the GPUs."""
        self.machine.plant(*cards, **world)

    def words(self, command: str, *options: str) -> list[str]:
        """Returns the words of a command on these GPUs. options: its options, and a command after `--`."""
        simulate = self.machine.simulate
        probe = ["--gpu-probe", self.machine.kind] if simulate is None else ["--simulate", simulate]
        return [*SCHEDULER, command, *probe, *options]

    def run(
        self,
        command: str,
        *options: str,
        env: Mapping[str, str] | None = None,
        text: str = "",
        below: Sequence[str] = (),
    ) -> tuple[int, str, str]:
        """Runs a command and returns its exit code, stdout and stderr.

        text: its stdin. below: the words of a program that runs the command, which follows these words.
        """
        if not text and not below:
            given = self.words(command, *options)[2:]
            done = warm.run("scheduler", given, self.folder, {**os.environ, **(env or {})}, TIMEOUT_S)
            return done.returncode, done.stdout, done.stderr
        done = subprocess.run(
            [*below, *self.words(command, *options)],
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, **(env or {})},
            cwd=self.folder,
        )
        return done.returncode, done.stdout, done.stderr

    def fake_runner(self) -> list[str]:
        """Returns the words of a program that runs a command and has the command line of a job's runner."""
        script = self.folder.parent / "gpu_scheduler" / "runner" / "start.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("import subprocess, sys; sys.exit(subprocess.call(sys.argv[2:]))")
        return [sys.executable, "-I", "-S", str(script), "attempt"]

    def start(self, command: str, *options: str, env: Mapping[str, str] | None = None) -> Started:
        """Starts a command."""
        started = Started(self.words(command, *options), env or {}, self.folder)
        self._started.append(started)
        return started

    def hold(self, *options: str) -> Started:
        """Starts a command under `run` that holds its claim until its stdin is closed."""
        holder = self.start("run", *options, "--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec cat')
        assert holder.read_line(), holder.stderr()
        return holder

    def can_claim(self, *options: str) -> bool:
        """Returns whether `run` with these options gets its GPUs at once."""
        code, _, err = self.run("run", *options, "--timeout", "0", "--", "true")
        assert code in (0, 124), err
        return code == 0

    def close(self) -> None:
        """Ends the started commands."""
        for started in self._started:
            started.close()
