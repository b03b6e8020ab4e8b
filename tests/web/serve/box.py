"""A folder with a queue in which tests run `serve` and `start --serve` as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import randrange
from typing import Any
from urllib.request import Request, urlopen

from gpu_scheduler.runner.locks import conflicting_lock
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests import warm
from tests.stress.harness import environment
from tests.waiting import wait_for

STATE = "gpu_scheduler_state.json"
#: The words that a test run by root needs.
AS_ROOT = ("--as-root",) if os.geteuid() == 0 else ()


def free_port() -> int:
    """Returns a port on which nothing listens now.

    It is below those that the kernel gives to clients, so that no connection takes it meanwhile.
    """
    while True:
        try:
            with closing(socket.create_server(("127.0.0.1", randrange(20_000, 32_000)))) as found:
                port: int = found.getsockname()[1]
                return port
        except OSError:
            continue  # it is in use


class Box:
    """The folder of a queue, with a token. `close` ends what the test has started.

    If `is_warm` is set, commands are forked from a process that has already imported the program.
    """

    def __init__(self, folder: Path, *, is_warm: bool = True) -> None:
        self._is_warm = is_warm
        self.folder = folder
        self.home = DataDir.of(str(folder / STATE))
        self.output = folder / "output"
        self.port = free_port()
        self.env = environment()
        self.processes: list[subprocess.Popen[bytes] | warm.Process] = []
        self.token = ""

    def create_token(self) -> None:
        """Creates a token, which every later request carries."""
        done = self.cli("token", "create", "test")
        assert done.returncode == 0, done.stderr
        self.token = done.stdout.strip()

    def argv(self, *words: str, python: Sequence[str] = ()) -> list[str]:
        return [sys.executable, *(python or ("-m", "gpu_scheduler")), *words, "--state-file", STATE]

    def cli(self, *words: str, python: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. python: options of the interpreter in place of `-m gpu_scheduler`."""
        if self._is_warm and not python:
            return warm.run("gpu_scheduler", (*words, "--state-file", STATE), self.folder, self.env)
        return subprocess.run(
            self.argv(*words, python=python), cwd=self.folder, env=self.env, capture_output=True, text=True,
            timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def begin(
        self, *words: str, python: Sequence[str] = (), prefix: Sequence[str] = (), **given: Any
    ) -> subprocess.Popen[bytes] | warm.Process:
        """Starts a command as `cli` does; its output goes to the file `output`. prefix: words before it."""
        process: subprocess.Popen[bytes] | warm.Process
        with open(self.output, "ab") as out:
            if self._is_warm and not (python or prefix or given):
                words, number = (*words, "--state-file", STATE), out.fileno()
                process = warm.Process("gpu_scheduler", words, self.folder, self.env, number, number)
                self.processes.append(process)
                return process
            process = subprocess.Popen(
                [*prefix, *self.argv(*words, python=python)], cwd=self.folder, env=self.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, **given,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def serve(self, *words: str, **given: Any) -> subprocess.Popen[bytes] | warm.Process:
        """Starts `serve` and waits until it answers."""
        process = self.begin("serve", "--port", str(self.port), *AS_ROOT, *words, **given)
        wait_for(lambda: self.health() or process.poll() is not None, "an answer of `serve`")
        assert process.poll() is None, self.output.read_text()
        return process

    def start(self, *words: str, **given: Any) -> subprocess.Popen[bytes] | warm.Process:
        """Starts a scheduler with `--serve`."""
        return self.begin("start", "--simulate", "2", "--log-dir", "logs", "--serve",
                          f"127.0.0.1:{self.port}", *AS_ROOT, *words, **given)  # fmt: skip

    def request(self, path: str) -> Any:
        """Sends a GET request; the body is still to be read. Raises OSError."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return urlopen(Request(f"http://127.0.0.1:{self.port}{path}", headers=headers), timeout=10)

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Sends a POST request and returns the answer. Raises OSError."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def health(self) -> dict[str, Any]:
        """Returns the answer of the server, {} if there is none."""
        try:
            with self.request("/api/v1/health") as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except OSError:
            return {}

    def server_pid(self) -> int:
        """Waits until the server answers, and returns the pid of the process that holds its lock."""
        wait_for(self.health, "an answer")
        return wait_for(lambda: self._lock_holder(), "a process with the lock of the server")

    def _lock_holder(self) -> int:
        try:
            fd = os.open(self.home.folder / "serve.lock", os.O_RDONLY)
        except FileNotFoundError:
            return 0
        lock = conflicting_lock(fd)
        os.close(fd)
        return 0 if lock is None else lock.pid

    def log(self) -> str:
        """Returns the main log."""
        return self.home.main_log.read_text() if self.home.main_log.exists() else ""

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in (scheduler_pid(self.home.lock), self._lock_holder()):
            if pid:
                os.kill(pid, signal.SIGKILL)
