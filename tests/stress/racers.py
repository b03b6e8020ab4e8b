"""Lets several processes claim the same attempts at the same time.

Usage: python -m tests.stress.racers FOLDER ROUNDS RACERS [control]. Prints the winners of each round as JSON.
With `control`, the racers use a faulty way of claiming (the negative control).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.runner import folder as files
from gpu_scheduler.runner.folder import claim, to_json

Claim = Callable[[int, dict[str, str | int | None]], int | None]


def _looks_then_writes(folder: int, identity: dict[str, str | int | None]) -> int | None:
    """Claims an attempt with a gap between the check and the write (for the negative control)."""
    if files.exists(folder, "claim"):
        return None
    os.sched_yield()
    fd = os.open("claim", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
    os.write(fd, to_json(identity))
    fcntl.lockf(fd, fcntl.LOCK_SH)
    return fd


def race(parent: Path, rounds: int, racers: int, claim: Claim) -> list[list[int]]:
    """Returns, for each folder, the pids of the racers that claimed it."""
    with mmap.mmap(-1, 8 * racers) as shared:
        pids = [_racer(parent, rounds, claim, shared, me) for me in range(racers)]
        for pid in pids:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    won: list[list[int]] = [[] for _ in range(rounds)]
    for pid in pids:
        path = parent / f"won.{pid}"
        for number in path.read_text().split():
            won[int(number)].append(pid)
        path.unlink()
    return won


def _racer(parent: Path, rounds: int, claim: Claim, shared: mmap.mmap, me: int) -> int:
    """Forks one racer and returns its pid.

    All racers try each folder together. The winner of a claim holds it for one round.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    with contextlib.suppress(BaseException):
        won, kept = [], None
        for number in range(rounds):
            folder = files.open_folder(str(parent / str(number)))
            _meet(shared, me, 2 * number + 1)
            lock = claim(folder, {"token": "t", "pid": os.getpid()})
            if lock is not None:
                won.append(str(number))
                kept = lock
            os.close(folder)
            _meet(shared, me, 2 * number + 2)
            if kept is not None:
                os.close(kept)
                kept = None
        (parent / f"won.{os.getpid()}").write_text(" ".join(won))
        status = 0
    os._exit(status)


def _meet(shared: mmap.mmap, me: int, step: int) -> None:
    """Waits until every racer has reached this step."""
    struct.pack_into("q", shared, 8 * me, step)
    deadline = time.monotonic() + 60
    while any(there < step for (there,) in struct.iter_unpack("q", shared[:])):
        os.sched_yield()
        assert time.monotonic() < deadline, "another racer has died"


if __name__ == "__main__":
    taken = _looks_then_writes if "control" in sys.argv else claim
    print(json.dumps(race(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), taken)))
