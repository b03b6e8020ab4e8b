"""Reads information about processes from /proc, and kills the processes of attempts, for tests."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from gpu_scheduler.attempts.observe import processes_of, sweep_once
from tests.waiting import wait_for


def exists(pid: int) -> bool:
    """Returns whether a process (or zombie) with this pid exists."""
    return Path(f"/proc/{pid}").exists()


def name_of(pid: int) -> str:
    """Returns the name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def has_arguments(pid: int) -> bool:
    """Returns whether a process shows its command line, which it does not during an exec."""
    return bool(Path(f"/proc/{pid}/cmdline").read_bytes())


def is_zombie(pid: int) -> bool:
    """Returns whether a process has ended but its parent has not collected it."""
    return _fields(pid)[0] == "Z"


def parent_of(pid: int) -> int:
    """Returns the pid of a process's parent."""
    return int(_fields(pid)[1])


def children_of(pid: int) -> list[int]:
    """Returns the pids of the children of a process. The process must have only one thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_terminal(pid: int) -> bool:
    """Returns whether a process has a controlling terminal."""
    return _fields(pid)[4] != "0"


def started_at(pid: int) -> float:
    """Returns the wall-clock time at which a process started."""
    age_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - age_s + int(_fields(pid)[19]) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat, beginning with the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def stop_between_writes(pid: int, database: Path) -> None:
    """Stops a process with SIGSTOP when it writes nothing into a database, so that others can write there."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: _fields(pid)[0] == "T", "a stopped process")
        db.execute("ROLLBACK")


def kill_attempts(folders: Mapping[str, Path]) -> None:
    """Kills every process of these attempts, also their runners. folders: the attempt folders by token."""

    def kill() -> bool:
        alive = {pid for pids in processes_of(folders).values() for pid in pids}
        # A runner is older than its job. If the job ended first, the runner could still write a result.
        for pid in sorted(alive):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not alive

    wait_for(kill, "the end of all processes")


def sweep(folder: Path, token: str, term_s: float = 2.0, deadline_s: float = 10.0) -> tuple[int, ...]:
    """Sends SIGTERM and, after `term_s` seconds, SIGKILL; returns the pids of the survivors.

    Returns when a scan finds nothing, or after `deadline_s` seconds.
    """
    start = time.monotonic()
    found = sweep_once(folder, token, signal.SIGTERM)
    while found and (passed := time.monotonic() - start) < deadline_s:
        time.sleep(0.05)
        # Until SIGKILL, signal 0 only checks for processes: a SIGTERM handler that saves its work must run
        # once.
        found = sweep_once(folder, token, signal.SIGKILL if passed >= term_s else 0)
    return found
