"""Detects shortages: tests whether processes can be started, and counts the kills of the kernel's OOM killer.

The counter of kills is that of this process's cgroup (memory.events in version 2, memory.oom_control in
version 1). If there is none, it is the counter of the whole machine (/proc/vmstat). A counter that cannot be
read yields None, never zero.
"""

from __future__ import annotations

import os

from .folder import SHORTAGE, read_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ENOMEM = SHORTAGE[1]
_PROGRAMS = ("/bin/true", "/usr/bin/true")
_CGROUPS = "/sys/fs/cgroup"


def start_error(count: int) -> int | None:
    """Tests whether `count` processes can be started; returns None if they can, otherwise the errno.

    Each process counts towards the limit until it is collected, even if it has ended. The processes are
    therefore started first and collected afterwards.
    """
    program = next((path for path in _PROGRAMS if os.path.exists(path)), None)
    if program is None:
        return None
    pids: list[int] = []
    failed: int | None = None
    try:
        for _ in range(count):
            pids.append(os.posix_spawn(program, ["true"], {}, setsigmask=()))
    except OSError as error:
        failed = error.errno if error.errno in SHORTAGE else None
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        # A process that started but could not load its program ran short of memory or open files.
        failed = failed or (_ENOMEM if status else None)
    return failed


class OomCounter:
    """Counts the processes that the OOM killer has killed since this object was created."""

    def __init__(self) -> None:
        self._fd = -1
        self._before: int | None = None
        for path in _counter_paths():
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            self._before = self._count()
            if self._before is not None:
                return
            os.close(self._fd)

    def kills(self) -> int | None:
        """Returns the number of kills since this object was created; None if it is unknown."""
        now = None if self._before is None else self._count()
        return None if now is None or self._before is None else max(0, now - self._before)

    def _count(self) -> int | None:
        try:
            text = os.pread(self._fd, 1 << 16, 0)
        except OSError:
            return None
        for line in text.split(b"\n"):
            if line.startswith(b"oom_kill "):
                return int(line[9:])
        return None


def _counter_paths() -> Iterator[str]:
    """Yields the paths at which a counter may exist, the most specific first."""
    try:
        groups = read_proc("self", "cgroup").decode("utf-8", "replace").splitlines()
    except OSError:
        groups = []
    for line in groups:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            yield f"{_CGROUPS}{path}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{_CGROUPS}/memory{path}/memory.oom_control"
    # In a container, the path may be valid only on the host. The container's own cgroup is then mounted here.
    yield f"{_CGROUPS}/memory.events"
    yield f"{_CGROUPS}/memory/memory.oom_control"
    yield "/proc/vmstat"
