"""A real redis-server for each module, and boxes: real schedulers on simulated GPUs that share its queue."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from gpu_scheduler.store.data_dir import DataDir  # noqa: E402
from tests.redis_queue.source_document import SourceQueue  # noqa: E402
from tests.stress.harness import environment  # noqa: E402
from tests.waiting import wait_for  # noqa: E402

#: Shortens the times of the protocol, so that a minute is 3 s. With shorter ones, the pauses of a busy
#: machine would count as those of an agent.
SCALE = 20


class Server:
    """A redis-server on a unix socket in a folder of its own. `start` and `kill` may be repeated."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "s"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Any = redis.Redis(unix_socket_path=str(self.socket))

    def start(self, *words: str) -> None:
        """Starts it, with its data if they are there. words: options of redis-server."""
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder),
             "--save", "", *(words or ("--appendonly", "yes", "--appendfsync", "always"))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(self._is_up, "an answer of redis-server")

    def _is_up(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """Kills it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def lose_data(self) -> None:
        """Kills it, and starts it without data."""
        self.kill()
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="rq") as folder:
        made = Server(Path(folder))
        made.start()
        yield made
        made.kill()


@pytest.fixture
def queue(server: Server) -> SourceQueue:
    """The queue of the server, which is empty and has forgotten everything."""
    if server.process is None:
        server.start()
    server.client.flushall()
    return SourceQueue(server.client)


class Box:
    """A folder with a queue of its own and its scheduler. runs: the traces that the jobs have written."""

    def __init__(self, folder: Path, url: str, runs: Path) -> None:
        self.folder, self.url, self.runs = folder, url, runs
        folder.mkdir()
        self.home = DataDir.of(str(folder / "state.json"))
        self.env = {
            **environment(), "GPU_SCHEDULER_REDIS_TIME_SCALE": str(SCALE), "RUNS": str(runs),
            "BOX": folder.name,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []
        self.script("job.py", "")

    def script(self, name: str, code: str) -> None:
        """Writes a script that leaves a trace in `runs` and then runs the code."""
        trace = "open(os.environ['RUNS'], 'a').write(' '.join([os.environ['BOX'], *sys.argv[1:]]) + '\\n')"
        (self.folder / name).write_text(f"import os, sys, time, pathlib\n{trace}\n{code}\n")

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output", "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_scheduler", *words, "--state-file", "state.json"],
                cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start(self, *words: str, gpus: str = "2") -> subprocess.Popen[bytes]:
        """Starts a scheduler with its agent."""
        return self.begin("start", "--simulate", gpus, "--log-dir", "logs", "--redis", self.url, *words)

    def start_scheduler(self, gpus: str = "2") -> subprocess.Popen[bytes]:
        """Starts a scheduler without an agent."""
        return self.begin("start", "--simulate", gpus, "--log-dir", "logs")

    def agent(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts an agent alone."""
        return self.begin("redis-agent", "--redis", self.url, *words)

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", *words],
            cwd=self.folder, env={**self.env, "GPU_SCHEDULER_STATE_FILE": "state.json"},
            capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def log(self) -> str:
        """Returns the main log."""
        return self.home.main_log.read_text() if self.home.main_log.exists() else ""

    def kill(self) -> None:
        """Kills all processes that the test has started here; running jobs go on."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.processes = []

    def close(self) -> None:
        """Ends the scheduler and its jobs."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
        self.cli("stop", "--jobs")
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def boxes(server: Server, queue: SourceQueue, tmp_path: Path) -> Iterator[Callable[[str], Box]]:
    """Returns a function that makes a box with a name."""
    made: list[Box] = []

    def make(name: str = "a") -> Box:
        made.append(Box(tmp_path / name, server.url, tmp_path / "runs"))
        return made[-1]

    yield make
    for box in made:
        box.close()


def traces(box: Box) -> Sequence[str]:
    """Returns what the jobs of all boxes have written, sorted."""
    return sorted(box.runs.read_text().splitlines()) if os.path.exists(box.runs) else []
