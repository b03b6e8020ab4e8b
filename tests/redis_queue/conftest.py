"""A real redis-server for each module, and boxes: real schedulers on simulated GPUs that share its queue."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

redis = pytest.importorskip("redis")

from gpu_scheduler.control.new_line import NewJob  # noqa: E402
from gpu_scheduler.control.submit import check_jobs, insert_gated  # noqa: E402
from gpu_scheduler.errors import SchedulerError  # noqa: E402
from gpu_scheduler.show.location import Location  # noqa: E402
from gpu_scheduler.store.data_dir import DataDir  # noqa: E402
from gpu_scheduler.store.store import Store  # noqa: E402
from gpu_scheduler.store.taken_items import TakenItem, box_id  # noqa: E402
from tests import warm  # noqa: E402
from tests.redis_queue.source_document import SourceQueue  # noqa: E402
from tests.stress.harness import environment  # noqa: E402
from tests.waiting import wait_for  # noqa: E402

#: Shortens the times of the protocol, so that a minute is 3 s. With shorter ones, the pauses of a busy
#: machine would count as those of an agent.
SCALE = 20
#: Waits until the file that the test creates exists.
WAIT = "while not pathlib.Path('go').exists(): time.sleep(0.02)"


class Server:
    """A redis-server on a unix socket in a folder of its own. `start` and `kill` may be repeated.

    url, client: how boxes and tests connect to it.
    """

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

    def save(self) -> None:
        """Saves what it has now, for `roll_back`."""
        self.client.save()
        shutil.copy(self.folder / "dump.rdb", self.folder / "saved")

    def roll_back(self) -> None:
        """Kills it, and starts it with what it had when it was saved, as an older snapshot."""
        self.kill()
        (self.folder / "saved").replace(self.folder / "dump.rdb")
        self.start("--appendonly", "no")

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
    """A folder with a queue of its own and its scheduler. runs: the traces that the jobs have written.

    A trace is the name of the folder and the script of the job, with its arguments.
    """

    def __init__(self, folder: Path, url: str, runs: Path) -> None:
        self.folder, self.url, self.runs = folder, url, runs
        folder.mkdir(exist_ok=True)
        self.home = DataDir.of(str(folder / "state.json"))
        self.env = {
            **environment(), "GPU_SCHEDULER_REDIS_TIME_SCALE": str(SCALE), "RUNS": str(runs),
            "BOX": folder.name,
        }  # fmt: skip
        self.processes: list[warm.Process] = []
        self.script("job.py", "")

    def script(self, name: str, code: str) -> None:
        """Writes a script that leaves a trace in `runs` and then runs the code."""
        trace = "print(os.environ['BOX'], os.path.basename(sys.argv[0]), *sys.argv[1:],"
        trace += " file=open(os.environ['RUNS'], 'a'))"
        (self.folder / name).write_text(f"import os, sys, time, pathlib\n{trace}\n{code}\n")

    def begin(self, *words: str) -> warm.Process:
        words = (*words, "--state-file", "state.json")
        with open(self.folder / "output", "ab") as out:
            process = warm.Process("gpu_scheduler", words, self.folder, self.env, out.fileno(), out.fileno())
        self.processes.append(process)
        return process

    def start(self, *words: str, gpus: str = "2") -> warm.Process:
        """Starts a scheduler with its agent."""
        return self.begin("start", "--simulate", gpus, "--log-dir", "logs", "--redis", self.url, *words)

    def start_scheduler(self, gpus: str = "2") -> warm.Process:
        """Starts a scheduler without an agent."""
        return self.begin("start", "--simulate", gpus, "--log-dir", "logs")

    def agent(self, *words: str) -> warm.Process:
        """Starts an agent alone."""
        return self.begin("redis-agent", "--redis", self.url, *words)

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        env = {**self.env, "GPU_SCHEDULER_STATE_FILE": "state.json"}
        return warm.run("gpu_scheduler", words, self.folder, env)

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


Boxes = Callable[..., Box]


def traces(box: Box) -> Sequence[str]:
    """Returns what the jobs of all boxes have written, sorted."""
    return sorted(box.runs.read_text().splitlines()) if os.path.exists(box.runs) else []


def runs(queue: SourceQueue, *items: str) -> None:
    """Waits until these items run."""
    wait_for(lambda: all(queue.status(one) == "running" for one in items), "running jobs")


def ends(queue: SourceQueue, *items: str, status: str = "completed") -> None:
    """Waits until the records of these items say that they have ended."""
    wait_for(lambda: [queue.status(one) for one in items] == [status] * len(items), f"{items} {status}")


def claim(queue: SourceQueue, item: str, box: str, *, confirmed: bool) -> None:
    """Writes a claim of another box, which has taken the item out of the queue."""
    score = queue.r.zscore("scheduler:queue", item)
    queue.r.zrem("scheduler:queue", item)
    queue.r.hset(
        f"gpusched:claim:{item}",
        mapping={"box": box, "fence": "f", "score": repr(score), "at": "1", "confirmed": str(int(confirmed)),
                 "ended": "0"},
    )  # fmt: skip
    queue.r.sadd("gpusched:claims", item)
    queue.r.hset("gpusched:counter", box, 7)


def open_queue(box: Box, queue: SourceQueue) -> None:
    """Accepts losses, because the box cannot know the claims that the test has written."""
    wait_for(
        lambda: queue.r.hget("gpusched:run", "at") or not box.cli(
            "redis-queue", "accept-loss", "--redis", box.url
        ).returncode,
        "an open queue",
    )  # fmt: skip


def opened(box: Box) -> Store | None:
    try:
        return Store(box.home)
    except SchedulerError:
        return None


def store_of(box: Box) -> Store:
    """Waits for the store of a box, and opens it."""
    found = wait_for(lambda: opened(box), "a store")
    assert found is not None
    return found


def insert_gated_job(store: Store, box: Box, queue: SourceQueue, item: str) -> TakenItem:
    """Leaves what an agent leaves that was killed after it has inserted a job."""
    location, made = Location(str(box.home.state_file)), []
    wait_for(lambda: store.db.meta("folder"), "the id of the folder")
    score, record = repr(queue.r.zscore("scheduler:queue", item)), json.dumps(queue.job(item))

    def taken(job_id: int) -> TakenItem:
        made.append(TakenItem(item, "f", job_id, score, record))
        return made[0]

    new = NewJob(script="job.py", attributes={"vram": "1000"})
    insert_gated(location, check_jobs(location, [new], os.environ, str(box.folder)), f"redis:{item}", taken)
    claim(queue, item, box_id(store), confirmed=False)
    return made[0]
