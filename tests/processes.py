"""Reads information about processes from /proc, for tests."""

from __future__ import annotations

import os
import time
from pathlib import Path


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
