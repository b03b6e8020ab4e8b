"""A process that takes locks on request, because the locks of a process never conflict with each other."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_scheduler.runner.locks import Lock, Refusal, Wanted, claim_gpus, open_to_read, read_locks, release

#: The name of a lock file with the claimed MiB (None means the whole GPU) and the memory of the GPU.
Claim = tuple[str, "int | None", "int | None"]


class LockProcess:
    """A process that claims memory in one lock folder. It ends at its next request after its input ends."""

    def __init__(self, folder: Path, **options: Any) -> None:
        words = [sys.executable, "-m", "tests.runner.lock_process", str(folder)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
            **options,
        )  # fmt: skip
        self.answer()  # it has started

    @property
    def pid(self) -> int:
        """The pid of the process, which is also that of a program that it has executed."""
        return self.process.pid

    def request(self, name: str, *values: object) -> None:
        """Sends a request. Call `answer` before the next one."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *values]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Returns the answer to the last request."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, name: str, *values: object) -> Any:
        """Sends a request and returns the answer."""
        self.request(name, *values)
        return self.answer()

    def claim(self, *claims: Claim, inheritable: bool = False, at: float = 0.0) -> Any:
        """Claims memory; returns "held", or the GPU and the pid of the refusal. at: see `request_claim`."""
        self.request_claim(*claims, inheritable=inheritable, at=at)
        return self.answer()

    def request_claim(self, *claims: Claim, inheritable: bool = False, at: float = 0.0) -> None:
        """Requests a claim. at: the time of the monotonic clock at which the process makes it."""
        self.request("claim", claims, inheritable, at)

    def end(self) -> None:
        """Kills the process, which releases its locks."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def lock_processes(folder: Path, count: int, **options: Any) -> Iterator[list[LockProcess]]:
    """Starts processes and ends them afterwards."""
    started: list[LockProcess] = []
    try:
        for _ in range(count):
            started.append(LockProcess(folder, **options))
        yield started
    finally:
        for one in started:
            one.end()


def locks_on(folder: Path, name: str) -> list[Lock]:
    """Returns the locks of other processes on a GPU; none if it has no lock file."""
    fd = open_to_read(str(folder), name)
    if fd is None:
        return []
    try:
        return read_locks(fd)
    finally:
        os.close(fd)


class _Requests:
    """Answers the requests of a LockProcess."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: list[int] = []
        self._raw: dict[str, int] = {}

    def claim(self, claims: Sequence[Claim], inheritable: bool, at: float) -> object:
        wanted = [Wanted(*one) for one in claims]
        time.sleep(max(0.0, at - time.monotonic()))
        try:
            answer = claim_gpus(self._folder, wanted, inheritable=inheritable)
        except OSError as error:
            return [type(error).__name__, error.errno, error.filename]
        if isinstance(answer, Refusal):
            return [answer.name, answer.pid]
        self._held += answer
        return "held"

    def descriptors(self) -> list[int]:
        return self._held

    def release(self) -> None:
        release(self._held)
        self._held = []

    def read(self, name: str) -> None:
        fd = open_to_read(self._folder, name)
        assert fd is not None
        os.close(fd)

    def locks(self, name: str) -> list[tuple[int, int | None, int]]:
        return [(lock.start, lock.end, lock.pid) for lock in locks_on(Path(self._folder), name)]

    def execute(self, *command: str) -> None:
        os.execv(command[0], command)

    def umask(self, mask: int) -> int:
        return os.umask(mask)

    def limit_files(self, count: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    def open_until_none_is_left(self) -> int:
        count = 0
        while True:
            try:
                os.open("/dev/null", os.O_RDONLY)
            except OSError:
                return count
            count += 1

    def lease(self, name: str) -> None:
        """Takes a lease on a file, and ignores the requests of the kernel to end it."""
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        self._leased = os.open(f"{self._folder}/{name}", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.fcntl(self._leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def lock_only(self, name: str, ranges: Sequence[tuple[int, int | None]]) -> None:
        """Replaces all locks on a file by these, each from its start up to its end."""
        if name not in self._raw:
            self._raw[name] = os.open(f"{self._folder}/{name}", os.O_RDWR | os.O_CREAT, 0o666)
        fd = self._raw[name]
        fcntl.lockf(fd, fcntl.LOCK_UN)
        for start, end in ranges:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0 if end is None else end - start, start)


def main() -> None:
    """Answers the requests on the input until its end."""
    requests = _Requests(sys.argv[1])
    print(json.dumps("started"), flush=True)
    for line in sys.stdin:
        name, *values = json.loads(line)
        print(json.dumps(getattr(requests, name)(*values)), flush=True)


if __name__ == "__main__":
    main()
