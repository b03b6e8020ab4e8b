"""A laboratory for the stress tests of the Redis queue: a real redis-server, boxes behind proxies, and jobs.

The times of the agents are divided by the environment variable STRESS_REDIS_SCALE, which is 60 by default. At
1, a run has full times.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import redis

from tests.stress.harness import Stage, environment, kill, scheduler
from tests.stress.part import Findings, Order
from tests.stress.redis_agent_steps import SIGNAL, STEP, STEPS
from tests.stress.redis_source import DROPPED, record_of, status_of, submit
from tests.waiting import wait_for

SCALE = float(os.environ.get("STRESS_REDIS_SCALE", "60"))
#: Seconds, shortened: for how long a counter that does not move makes a box silent, with some margin.
SILENT_S = 60 / SCALE + 0.75
STATE = "gpu_scheduler_state.json"
#: Stands in for the `python` of scripts: it runs a shell script, which starts faster.
_PYTHON = '#!/bin/sh\nexec /bin/sh "$@"\n'
#: A job: writes its number and its box when it starts and ends. With a gate, it waits until that file exists.
_JOB = """\
echo "{n} start $BOX $$" >> {trace}
{wait}
echo "{n} end {code}" >> {trace}
exit {code}
"""

Link = Literal["open", "closed", "mute"]
Program = Literal["agent", "scheduler"]


class RedisServer:
    """A redis-server of its own, on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._options: tuple[str, ...] = ()

    @staticmethod
    def is_installed() -> bool:
        """Returns whether this machine has a redis-server."""
        return shutil.which("redis-server") is not None

    def start(self, *options: str, appendonly: bool = True) -> None:
        """Starts the server on what its folder has, and waits until it answers."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        words += ["--appendonly", "yes" if appendonly else "no", *options]
        with (self.folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                ["redis-server", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        wait_for(self.answers, "redis-server", timeout_s=30)

    def answers(self) -> bool:
        """Returns whether the server answers."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def client(self) -> redis.Redis:
        """Returns a client, which gets text."""
        return redis.Redis(port=self.port, socket_timeout=10)

    def kill(self) -> None:
        """Kills the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove_data(self) -> None:
        """Removes what the server has on its disk."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "log":
                path.unlink()


class Proxy:
    """A TCP proxy between one box and the server. link: what it does with connections.

    open: it passes everything on; closed: it closes and refuses them; mute: it keeps them, and passes nothing
    on, like a cable that was pulled.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._wake, self._woken = socket.socketpair()
        self._link: Link = "open"
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def set(self, link: Link) -> None:
        """Changes the link."""
        self._link = link
        self._wake.send(b".")

    def close(self) -> None:
        """Ends the proxy."""
        self._is_over = True
        self.set("closed")
        self._thread.join()
        for one in (self._listener, self._wake, self._woken):
            one.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._is_over:
                link = self._link
                wanted = set() if link == "mute" else {self._listener, *self._pairs}
                for one in (self._listener, *self._pairs):
                    is_there = one in selector.get_map()
                    if one in wanted and not is_there:
                        selector.register(one, selectors.EVENT_READ)
                    elif one not in wanted and is_there:
                        selector.unregister(one)
                for key, _ in selector.select(0.5):
                    self._handle(selector, key.fileobj)
                if self._link == "closed":
                    for one in list(self._pairs):
                        self._drop(selector, one)

    def _handle(self, selector: selectors.BaseSelector, one: Any) -> None:
        if one is self._woken:
            self._woken.recv(100)
        elif one is self._listener:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._to), timeout=2)
            except OSError:
                client.close()
                return
            self._pairs[client], self._pairs[server] = server, client
        elif one in self._pairs and self._link == "open":
            try:
                data = one.recv(65536)
                if data:
                    self._pairs[one].sendall(data)
                    return
            except OSError:
                pass
            self._drop(selector, one)

    def _drop(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        if one not in self._pairs:
            return
        for end in (one, self._pairs[one]):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            self._pairs.pop(end, None)
            end.close()


def free_port() -> int:
    """Returns a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisBox:
    """One box: a scheduler with simulated GPUs, its agent, and the proxy between it and Redis.

    companion: the scheduler starts the agent.
    """

    def __init__(self, folder: Path, name: str, port: int, *, companion: bool, program: str) -> None:
        folder.mkdir()
        (folder / "jobs.txt").touch()
        self.name, self.folder, self.companion = name, folder, companion
        self.proxy = Proxy(port)
        self.url = f"redis://127.0.0.1:{self.proxy.port}/0"
        bin_ = folder.parent / "bin"
        self.env = {
            **environment(), "BOX": name, "GPU_SCHEDULER_REDIS_TIME_SCALE": str(SCALE),
            "PATH": f"{bin_}:{os.environ['PATH']}",
        }  # fmt: skip
        self.stage = Stage(folder, command=scheduler(folder, program=program), env=self.env)
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the scheduler and the agent."""
        self.start_scheduler()
        self.start_agent()

    def start_scheduler(self, step: str = "", number: int = signal.SIGKILL) -> None:
        """Starts the scheduler. At the step, it gets this signal; then, nobody waits until it is up."""
        self.stage.env = self._env_for("scheduler", step, number)
        url = ["--redis", self.url] if self.companion else []
        self._scheduler = self.stage.start(*url, ready=not step)

    def start_agent(self, step: str = "", number: int = signal.SIGKILL) -> None:
        """Starts the agent, unless the scheduler does. At the step, it gets this signal."""
        if self.companion:
            return
        words = ["redis-agent", "--redis", self.url, "--state-file", STATE]
        with (self.folder / "agent.out").open("ab") as out:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.redis_agent_steps", *words],
                cwd=self.folder, env=self._env_for("agent", step, number), stdout=out, stderr=out,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def restart(self, program: Program, step: str = "", number: int = signal.SIGKILL) -> None:
        """Kills the agent or the scheduler and starts it anew. At the step, it gets this signal."""
        if program == "agent":
            self.signal_agent(signal.SIGKILL)
            self.start_agent(step, number)
        else:
            self.kill_scheduler()
            self.start_scheduler(step, number)

    def steps(self, program: Program) -> list[str]:
        """Returns the names of the steps that these programs have reached, in order, if they have steps."""
        path = self.folder / f"{program} steps"
        return path.read_text().splitlines() if path.exists() else []

    def has_failed(self, program: Program) -> bool:
        """Returns whether this process, which the test has started, was killed or is stopped by SIGSTOP."""
        process = self._process(program)
        return process.poll() == -signal.SIGKILL or _is_stopped(process.pid)

    def go_on(self, program: Program) -> None:
        """Continues this process, which the test has started, if it is stopped."""
        self._process(program).send_signal(signal.SIGCONT)

    def _process(self, program: Program) -> subprocess.Popen[bytes]:
        process = self._agent if program == "agent" else self._scheduler
        assert process is not None
        return process

    def _env_for(self, program: Program, step: str, number: int) -> dict[str, str]:
        fault = {STEP: step, SIGNAL: str(int(number))} if step else {}
        return {**self.env, STEPS: str(self.folder / f"{program} steps"), **fault}

    def agent_pid(self) -> int | None:
        """Returns the pid of the living agent."""
        if self._agent is not None:
            return self._agent.pid if self._agent.poll() is None else None
        if self._scheduler is None or self._scheduler.poll() is not None:
            return None
        pid = self._scheduler.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if b"\0redis-agent\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def is_stopped(self) -> bool:
        """Returns whether the agent is stopped by SIGSTOP."""
        pid = self.agent_pid()
        return pid is not None and _is_stopped(pid)

    def signal_agent(self, number: int) -> bool:
        """Signals the agent; returns False if there is none."""
        pid = self.agent_pid()
        done = pid is not None and kill(pid, number)
        if self._agent is not None and number == signal.SIGKILL:
            self._agent.wait()
        return done

    def kill_scheduler(self) -> None:
        """Kills the scheduler; a companion ends with it."""
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler.wait()

    def kill(self) -> None:
        """Kills the agent and the scheduler."""
        self.signal_agent(signal.SIGKILL)
        self.kill_scheduler()

    def destroy(self) -> None:
        """Ends every process of the box, jobs and runners included, as a power cut does."""
        self.proxy.set("mute")
        self.kill()
        mark = f"BOX={self.name}\0".encode()
        place = f"PATH={self.folder.parent / 'bin'}:".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                text = path.read_bytes() + b"\0"
                if mark in text and place in text and int(path.parent.name) != os.getpid():
                    kill(int(path.parent.name))

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs one command of the program on this box."""
        return self.stage.cli(*words)

    def close(self) -> None:
        """Ends everything except the jobs."""
        self.signal_agent(signal.SIGCONT)
        self.kill()
        self.proxy.close()


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


class Lab:
    """A Redis with boxes and the jobs that were pushed. excused: by number, why a job may not start.

    expected: by number, how often a job starts, if not once.
    """

    def __init__(
        self, order: Order, folder: Path, *, boxes: str = "ABC", program: str = "gpu_scheduler"
    ) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "bin").mkdir()
        (folder / "scripts").mkdir()
        python = folder / "bin" / "python"
        python.write_text(_PYTHON)
        python.chmod(0o755)
        self.folder, self.trace, self.dice = folder, folder / "trace", order.rng(folder.name)
        self.trace.touch()
        self.server = RedisServer(folder / "redis")
        self.boxes = [
            RedisBox(folder / f"box{name}", name, self.server.port, companion=name == "C", program=program)
            for name in boxes
        ]
        self.codes: dict[int, int] = {}
        self.excused: dict[int, str] = {}
        self.expected: dict[int, int] = {}
        self.others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for other in self.others:
            other.kill()
            other.wait()
        for box in self.boxes:
            box.close()
        (self.folder / "gate").touch()
        self.server.kill()

    def run_beside(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        """Runs another program on the same queue, as `python -m MODULE PORT WORDS`."""
        env = {**environment(), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        with (self.folder / "others.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(self.server.port), *words],
                cwd=self.folder, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.others.append(process)
        return process

    def push(
        self, count: int, longest_s: float = 0.3, *, shortest_s: float = 0.0, gated: bool = False,
        memory_mb: int = 2000,
    ) -> None:  # fmt: skip
        """Pushes new items as the source's producer does. shortest_s, longest_s: how long their jobs run."""
        with self.server.client() as client:
            for n in range(len(self.codes), len(self.codes) + count):
                self.codes[n] = code = self.dice.choice((0, 0, 0, 3))
                wait = f"sleep {self.dice.uniform(shortest_s, longest_s):.2f}"
                if gated:
                    wait = f"while [ ! -e {self.folder / 'gate'} ]; do sleep 0.1; done"
                script = self.folder / "scripts" / f"job{n}.py"
                script.write_text(_JOB.format(n=n, trace=self.trace, wait=wait, code=code))
                submit(client, record_of(name_of(n), str(script), memory_mb, self.dice.choice((100, 200))))

    def starts(self) -> Counter[int]:
        """Returns how often each item started."""
        return Counter(int(line.split()[0]) for line in self._lines() if " start " in line)

    def starts_on(self, box: str) -> list[int]:
        """Returns the items that started on a box, in this order."""
        return [int(line.split()[0]) for line in self._lines() if f" start {box} " in line]

    def ended(self) -> set[int]:
        """Returns the items that have come to their end."""
        return {int(line.split()[0]) for line in self._lines() if " end " in line}

    def _lines(self) -> list[str]:
        return self.trace.read_text().splitlines()

    def settle(self, timeout_s: float) -> None:
        """Waits until every item that is not excused has ended, and until none starts any more."""
        with contextlib.suppress(AssertionError):
            wait_for(self.have_ended, "the ends of all items", timeout_s + 4 * SILENT_S, every_s=0.05)
        # A second start would follow the return of a box that was silent.
        while self._starts_more(2 * SILENT_S):
            pass

    def have_ended(self) -> bool:
        """Returns whether every item that is not excused has ended."""
        self._excuse_dropped()
        return self.codes.keys() - self.excused.keys() <= self.ended()

    def _excuse_dropped(self) -> None:
        """Excuses the items that the source's scheduler took between the two writes of their producer."""
        path = self.folder / "others.out"
        found = re.findall(rf"(?m)^{DROPPED} ([0-9a-f]{{12}})$", path.read_text()) if path.exists() else ()
        reason = "the source's scheduler took them before their records were written"
        self.excused |= {int(name, 16): reason for name in found}

    def _starts_more(self, timeout_s: float) -> bool:
        seen = sum(self.starts().values())
        try:
            wait_for(lambda: sum(self.starts().values()) > seen, "a start", timeout_s, every_s=0.1)
        except AssertionError:
            return False
        return True

    def judge(self, found: Findings) -> None:
        """Compares the trace with what was pushed."""
        starts = self.starts()
        for n in self.codes:
            wanted = self.expected.get(n, 1)
            if starts[n] > wanted:
                found.fault("run twice", f"item {n} ran {starts[n]} times: {self._story(n)}")
            elif starts[n] < wanted:
                if n in self.excused:
                    found.count(f"items lost: {self.excused[n]}")
                else:
                    found.fault("lost", f"item {n} ran {starts[n]} times: {self._story(n)}")

    def judge_records(self, found: Findings) -> None:
        """Checks that each record says how its job ended. Only where Redis has kept its data."""
        with self.server.client() as client:

            def wrong() -> list[str]:
                texts = []
                for n in self.codes.keys() & self.ended():
                    status, wanted = status_of(client, name_of(n)), "failed" if self.codes[n] else "completed"
                    if status != wanted:
                        texts.append(f"item {n} is {wanted}, its record says {status}")
                return texts

            with contextlib.suppress(AssertionError):
                wait_for(lambda: not wrong(), "records", timeout_s=10, every_s=0.2)
            for text in wrong():
                found.fault("wrong records", text)

    def _story(self, n: int) -> str:
        lines = [line for line in self._lines() if line.split()[0] == str(n)]
        try:
            with self.server.client() as client:
                name = name_of(n)
                keys: Any = [key for key in client.keys(f"gpusched:*{name}")]
                more = [
                    f"set {client.zscore('scheduler:queue', name)}",
                    f"record {client.get(f'scheduler:job:{name}')!r}",
                    *(f"{key!r} {client.hgetall(key)!r}" for key in keys if client.type(key) == b"hash"),
                ]  # fmt: skip
        except redis.RedisError as error:
            more = [str(error)]
        return "; ".join([*lines, *more])

    def excuse_unclaimed(self, reason: str) -> None:
        """Excuses what only Redis has: items in the set, and claims that were not confirmed."""
        with self.server.client() as client:
            names = {name.decode() for name in client.zrange("scheduler:queue", 0, -1)}
            for key in client.scan_iter("gpusched:claim:*"):
                if client.hget(key, "confirmed") not in (b"1", b"true"):
                    names.add(key.decode().rpartition(":")[2])
        self.excused |= {int(name, 16): reason for name in names if re.fullmatch("[0-9a-f]{12}", name)}


def name_of(n: int) -> str:
    """Returns the id of an item: twelve digits of hexadecimal, as the source's are."""
    return f"{n:012x}"


def all_alive(boxes: Iterable[RedisBox]) -> bool:
    """Returns whether each box has an agent."""
    return all(box.agent_pid() is not None for box in boxes)
