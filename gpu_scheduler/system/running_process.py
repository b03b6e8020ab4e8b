"""Reads from /proc what a running process is: its command, folder, environment, output and start time."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpu_scheduler.runner.folder import boot_id, fields_of, has_ended, read_proc
from gpu_scheduler.system.shortages import reraise_shortage

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000
_DELETED = " (deleted)"


class ProcessProblem(Enum):
    """The reason why a process cannot be read as a job.

    ENDED: it is a zombie. UNREADABLE: the kernel protects it, for example because its program has
    capabilities.
    """

    GONE = "gone"
    ENDED = "ended"
    KERNEL_THREAD = "kernel_thread"
    OTHER_USER = "other_user"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class RunningProcess:
    """A process of this user.

    start_ticks: its start in kernel ticks since the boot that boot_id identifies; started_at: the same in
    wall-clock seconds. arguments: its command line, with the name of the program first. executable: the path
    of the program file. environment: the variables with which it was started. log: the file to which its
    standard output goes; None if that is not a regular file, or if the file was deleted.
    """

    pid: int
    start_ticks: int
    boot_id: str
    started_at: float
    arguments: tuple[str, ...]
    executable: str
    cwd: str
    environment: Mapping[str, str] = field(repr=False)  # it may contain secrets
    log: str | None = None


def read_running_process(pid: int) -> RunningProcess | ProcessProblem:
    """Returns the process with this pid, or why it cannot be read.

    Raises OSError for a shortage of open files or memory.
    """
    fields = fields_of(pid)
    if fields is None:
        return ProcessProblem.GONE
    if int(fields[6]) & _KERNEL_THREAD:
        return ProcessProblem.KERNEL_THREAD
    if has_ended(fields):
        return ProcessProblem.ENDED
    try:
        if _user_ids(pid) != {os.geteuid()}:
            return ProcessProblem.OTHER_USER
        found = _read(pid, int(fields[19]))
    except PermissionError:
        return ProcessProblem.UNREADABLE
    except OSError as error:
        reraise_shortage(error)
        return ProcessProblem.GONE
    # Another process may have got the pid while the files were read.
    again = fields_of(pid)
    if again is None or int(again[19]) != found.start_ticks:
        return ProcessProblem.GONE
    return ProcessProblem.ENDED if has_ended(again) else found


def _read(pid: int, ticks: int) -> RunningProcess:
    return RunningProcess(
        pid,
        ticks,
        boot_id(),
        time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS_PER_S),
        _strings(read_proc(pid, "cmdline")) or ("",),
        _linked(pid, "exe"),
        _linked(pid, "cwd"),
        dict(text.split("=", 1) for text in _strings(read_proc(pid, "environ")) if "=" in text),
        log if (log := output_file(pid)) and not log.startswith("/proc/") else None,
    )


def _user_ids(pid: int) -> set[int]:
    """Returns the real, effective and saved user ids of a process."""
    for line in read_proc(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return {int(word) for word in line.split()[1:4]}
    return set()


def _strings(data: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(one) for one in data.removesuffix(b"\0").split(b"\0")) if data else ()


def _linked(pid: int, name: str) -> str:
    """Returns the target of a link of the process. The kernel marks the target if it was deleted."""
    path = os.readlink(f"/proc/{pid}/{name}")
    return path if os.path.lexists(path) else path.removesuffix(_DELETED)


def output_file(pid: int) -> str | None:
    """Returns the path of the regular file to which a process writes; None if its output goes elsewhere.

    It is the path of the descriptor if the file was deleted, or if its name cannot be found.
    """
    link = f"/proc/{pid}/fd/1"
    try:
        path, opened = os.readlink(link), os.stat(link)
        if not stat.S_ISREG(opened.st_mode):
            return None
        return path if os.path.exists(path) and os.path.samestat(opened, os.stat(path)) else link
    except OSError as error:
        reraise_shortage(error)
    return None
