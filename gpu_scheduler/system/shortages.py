"""Describes shortages of processes, memory and open files: which limit was reached, and what to do about it.

A shortage is a problem of the machine and its limits. It never counts against a job, a line or a GPU.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.system.safe_file import Content, read

#: Number of processes that a job in Screen needs. A limit that leaves fewer free counts as reached.
PROCESSES_PER_JOB = 4
#: The limit on open files that the remedy suggests.
_RAISED_FILE_LIMIT = 65536
_CGROUPS = "/sys/fs/cgroup"


def shortage_of(error: BaseException | None) -> int | None:
    """Returns the errno of an error that reports a shortage; None for any other error."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return error.errno if isinstance(error, OSError) and error.errno in SHORTAGE else None


def reraise_shortage(error: OSError) -> None:
    """Raises the error again if it reports a shortage, because nothing can then be concluded from it."""
    if error.errno in SHORTAGE:
        raise error


def describe_shortage(error_number: int) -> str:
    """Returns a text that gives the limit that was reached, and the remedy."""
    if error_number == errno.EMFILE:
        return _open_files_limit(*resource.getrlimit(resource.RLIMIT_NOFILE))
    if error_number == errno.ENFILE:
        return "system limit on open files reached (fs.file-max): raise it with `sudo sysctl`"
    if error_number == errno.ENOMEM:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return f"memory limit reached (ulimit -v is {limit // 1024}): free memory, or raise the limit"
        return "out of memory: free memory, or raise the limit (MemoryMax)"
    remedy = "end processes, or raise the limit"
    for limit, current, name in _process_limits():
        if current + PROCESSES_PER_JOB > limit:
            return f"process limit reached ({name.format(limit)}): {remedy}"
    return f"process limit reached (ulimit -u / TasksMax): {remedy}"


def _open_files_limit(soft_limit: int, hard_limit: int) -> str:
    most = _RAISED_FILE_LIMIT if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _RAISED_FILE_LIMIT)
    # A user may raise the limit up to the hard limit; only root may raise it further.
    raising = f"prlimit --pid {os.getpid()} --nofile={most}:"
    if most <= soft_limit:
        raising = f"sudo prlimit --pid {os.getpid()} --nofile={max(2 * soft_limit, _RAISED_FILE_LIMIT)}"
    return f"limit on open files reached (ulimit -n is {soft_limit}): raise it (`{raising}`)"


def _process_limits() -> Iterator[tuple[int, int, str]]:
    """Yields (limit, current number, text template) for each limit on processes that can be read."""
    for folder in _control_groups():
        limit, current = _read_number(f"{folder}/pids.max"), _read_number(f"{folder}/pids.current")
        if limit is not None and current is not None:
            yield limit, current, f"{folder}/pids.max is {{}}; TasksMax of a systemd unit"
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if own != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield own, _count_tasks(os.geteuid()), "ulimit -u is {}"
    total = _read_text("/proc/loadavg").split()[3:4]
    everything = int(total[0].partition("/")[2]) if total else 0
    for name in ("threads-max", "pid_max"):
        limit = _read_number(f"/proc/sys/kernel/{name}")
        if limit is not None:
            yield limit, everything, f"kernel.{name} is {{}}"


def _control_groups() -> Iterator[Path]:
    """Yields our own control group and its ancestors, in cgroup version 1 or 2."""
    for line in _read_text("/proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "pids" not in controllers.split(","):
            continue
        base = Path(_CGROUPS, "pids") if controllers else Path(_CGROUPS)
        group = base / path.lstrip("/")
        yield from (group, *group.parents[: len(group.parts) - len(base.parts)])


def _count_tasks(user: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # the process has ended
    return count


def _read_number(path: str) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: str) -> str:
    found = read(path, trust=True)
    return found.data.decode("ascii", "replace") if isinstance(found, Content) else ""
