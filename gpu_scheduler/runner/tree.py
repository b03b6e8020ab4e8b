"""Which processes belong to an attempt, by descent or by the token in their environment, and signals to them.

A signal goes through a pidfd of a process whose start was checked after the pidfd was opened, so that a pid
that was given away meanwhile is never hit. It decides neither whom to signal nor when. Zombies are not alive.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Collection, Iterator
else:
    import _signal

_MARK = b"GPU_SCHEDULER_TOKEN="
_KERNEL_THREAD = 0x00200000
#: A process inside exec shows no environment. It is asked again, at most so long (seconds).
_EXEC_S = 0.1
_EXEC_AGAIN_S = 0.0005


def _file(pid: int, name: str) -> bytes:
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 17), b""))
    finally:
        os.close(fd)


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on; None for a process that is gone or a zombie."""
    try:
        fields = _file(pid, "stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return None if not fields or fields[0] in (b"Z", b"X", b"x") else fields


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def ticks_of(pid: int) -> int | None:
    """When a process started, in kernel ticks since boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def descendants(root: int) -> dict[int, int]:
    """Every living process below `root`, with its start ticks."""
    children: dict[int, list[tuple[int, int]]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append((pid, int(fields[19])))
    found: dict[int, int] = {}
    below = [root]
    while below:
        for pid, ticks in children.get(below.pop(), ()):
            found[pid] = ticks
            below.append(pid)
    return found


def carriers(tokens: Collection[str]) -> dict[str, dict[int, int]]:
    """The living processes that carry each of these tokens, with their start ticks.

    One scan; only processes of the own user are asked (root: of all). This process is left out. One that
    hides its environment (set-user-id programs, a title written over it) is not seen.
    """
    wanted = {token.encode("ascii"): token for token in tokens}
    uid, me = os.geteuid(), os.getpid()
    found: dict[str, dict[int, int]] = {}
    for pid in _pids():
        if pid == me:
            continue
        try:
            if uid and os.stat(f"/proc/{pid}").st_uid != uid:
                continue
        except OSError:
            continue
        token = wanted.get(_token(pid))
        ticks = None if token is None else ticks_of(pid)
        if token is not None and ticks is not None:
            found.setdefault(token, {})[pid] = ticks
    return found


def _token(pid: int) -> bytes:
    """The token of a process; empty if it has none that can be read."""
    until = time.monotonic() + _EXEC_S
    while True:
        try:
            environment = _file(pid, "environ")
        except OSError:
            return b""
        if environment or not _between_images(pid) or time.monotonic() > until:
            break
        time.sleep(_EXEC_AGAIN_S)
    if environment.startswith(_MARK):
        start = 0
    else:
        start = environment.find(b"\0" + _MARK) + 1
        if not start:
            return b""
    return environment[start + len(_MARK) :].partition(b"\0")[0]


def _between_images(pid: int) -> bool:
    """Whether a process that may be looked at is inside exec, or just ending."""
    fields = _stat(pid)
    if fields is None or int(fields[6]) & _KERNEL_THREAD:
        return False
    # Field 51 of stat, the end of the environment, is 0 until exec has set it.
    return len(fields) > 48 and int(fields[48]) == 0


def send(pid: int, ticks: int, signal: int) -> bool:
    """Signal the process with this pid and start. False: it is gone, or not ours to signal."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if ticks_of(pid) != ticks:
            return False
        _signal.pidfd_send_signal(fd, signal)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
