"""Reads processes from /proc.

If a process is gone or cannot be read, the functions return an empty value. Only a shortage of open files or
memory raises OSError.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property, lru_cache

from msgspec import Struct

from gpu_scheduler.runner.folder import boot_id, fields_of, has_ended, read_proc, stat_fields
from gpu_scheduler.runner.process_scan import token_in
from gpu_scheduler.system.shortages import reraise_shortage

PROC = "/proc"
#: The target of the link /proc/self/ns/pid in the initial pid namespace, which contains every process of the
#: machine.
INITIAL_PID_NAMESPACE = "pid:[4026531836]"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(Struct, frozen=True):
    """The values in /proc/PID/stat. start: clock ticks since boot. ended: whether the process is a zombie."""

    pid: int
    start: int
    parent: int
    session: int
    ended: bool

    def is_same_as(self, other: Process | None) -> bool:
        """Returns whether `other` describes the same process."""
        return other is not None and (self.pid, self.start) == (other.pid, other.start)


class Proc:
    """Reads /proc, or a folder of ordinary files in a test."""

    def __init__(self, root: str = PROC) -> None:
        self._root = root

    @cached_property
    def sees_all(self) -> bool:
        """True if this /proc shows every process of the machine, with the pids that the driver uses."""
        try:
            return os.readlink(f"{self._root}/self/ns/pid") == INITIAL_PID_NAMESPACE
        except OSError:
            return False

    @cached_property
    def own_process(self) -> Process | None:
        """The process that runs this code; None if it cannot be read."""
        return self.process("self")

    def process(self, pid: int | str) -> Process | None:
        """Returns the process with this pid; None if there is none."""
        text = self._read(pid, "stat")
        fields = stat_fields(text)
        if len(fields) < 20:
            return None
        number = int(text.split(maxsplit=1)[0])
        return Process(number, int(fields[19]), int(fields[1]), int(fields[3]), has_ended(fields))

    def processes(self) -> Iterator[Process]:
        """Yields all processes."""
        for name in _names(self._root):
            process = self.process(name) if name.isdecimal() else None
            if process is not None:
                yield process

    def ancestry(self, process: Process) -> Iterator[Process]:
        """Yields the process and its ancestors."""
        link: Process | None = process
        while link is not None:
            yield link
            parent = self.process(link.parent) if link.parent > 0 else None
            # A parent that started later than its child has reused the pid of the real parent.
            link = parent if parent is not None and parent.start <= link.start else None

    def command_line(self, pid: int) -> list[str]:
        """Returns the command line of a process; an empty list if it has none."""
        return list(_strings(self._read(pid, "cmdline")))

    def user_id(self, pid: int) -> int | None:
        """Returns the real user id of a process; None if unknown."""
        words = _words(self._read(pid, "status"), b"Uid:")
        return int(words[0]) if words else None

    def token(self, pid: int) -> str | None:
        """Returns the attempt's token in the environment of a process; None if there is none."""
        return token_in(self._read(pid, "environ")).decode("ascii", "replace") or None

    def autogroup(self, pid: int) -> str | None:
        """Returns the kernel's autogroup id for the session of a process; None if the kernel has none."""
        return self._read(pid, "autogroup").split(b" ")[0].decode("ascii", "replace") or None

    def cgroup(self, pid: int | str) -> str:
        """Returns the cgroup (version 2) of a process; empty if there is none."""
        for line in self._read(pid, "cgroup").splitlines():
            if line.startswith(b"0::"):
                return os.fsdecode(line[3:])
        return ""

    def inner_pids(self, pid: int) -> tuple[int, ...]:
        """Returns the pids of a process in the pid namespaces inside the one that this /proc shows."""
        return tuple(map(int, _words(self._read(pid, "status"), b"NSpid:")[1:]))

    def uses_gpu(self, pid: int) -> bool:
        """Returns whether a process has a device file of an NVIDIA GPU open."""
        return any(
            self._open_path(pid, fd).startswith("/dev/nvidia") for fd in _names(f"{self._root}/{pid}/fd")
        )

    def is_hidden(self, pid: int) -> bool:
        """Returns whether a process exists but /proc hides it because of the mount option hidepid."""
        if self._root != PROC or pid <= 0 or os.path.exists(f"{PROC}/{pid}"):
            return False
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return True

    def started_at(self, process: Process) -> float:
        """Returns the start time of a process in wall-clock seconds."""
        return process.start / _TICKS_PER_S + _boot_time(self._root)

    def _open_path(self, pid: int, fd: str) -> str:
        try:
            return os.readlink(f"{self._root}/{pid}/fd/{fd}")
        except OSError:
            return ""

    def _read(self, pid: int | str, name: str) -> bytes:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as file:
                return file.read()
        except OSError as error:
            reraise_shortage(error)
            return b""


@lru_cache
def _boot_time(root: str) -> float:
    """Returns when the machine booted, in wall-clock seconds.

    Reads it only once, so that the start times of processes stay the same when the clock is set.
    """
    try:
        with open(f"{root}/stat", "rb") as file:
            return float(next(line.split()[1] for line in file if line.startswith(b"btime ")))
    except (OSError, StopIteration):
        return 0.0


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        reraise_shortage(error)
        return []


# Reads from /proc what a running process is: its command, folder, environment, output and start time.


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


class RunningProcess(Struct, frozen=True):
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
    environment: Mapping[str, str]
    log: str | None = None

    def __repr__(self) -> str:  # the environment may contain secrets
        return f"RunningProcess(pid={self.pid}, arguments={self.arguments!r})"


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
        # The real, the effective and the saved user id.
        if set(map(int, _words(read_proc(pid, "status"), b"Uid:")[:3])) != {os.geteuid()}:
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


def _words(status: bytes, key: bytes) -> list[bytes]:
    """Returns the words behind a key in /proc/PID/status; none if no line begins with the key."""
    return next((line.split()[1:] for line in status.splitlines() if line.startswith(key)), [])


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
