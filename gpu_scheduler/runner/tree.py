"""Which processes belong to an attempt, by descent or by the token in their environment, and signals to them.

A signal goes through a pidfd of a process whose start was checked after the pidfd was opened, so that a pid
that was given away meanwhile is never hit. It decides neither whom to signal nor when. Zombies are not alive.
"""

from __future__ import annotations

import os
import time

from .folder import TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Collection, Iterator
else:
    import _signal

_MARK = TOKEN.encode() + b"="
_KERNEL_THREAD = 0x00200000
#: A process inside exec shows no environment, or an empty one: it is asked again, so long and so often (seconds).
_EXEC_S = 0.1
_EXEC_EMPTY_S = 0.02
_EXEC_AGAIN_S = 0.0005
#: Processes (pid, start ticks) that were waited for once and never showed an environment: such is PID 1 of
#: many containers. Waiting again at each scan would delay every job's end.
_hiding: set[tuple[int, int | None]] = set()


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
    found: dict[str, dict[int, int]] = {}

    def note(pid: int, environment: bytes) -> None:
        token = wanted.get(_token(environment))
        ticks = None if token is None else ticks_of(pid)
        if token is not None and ticks is not None:
            found.setdefault(token, {})[pid] = ticks

    undecided = []
    for pid in _own_pids():
        environment = _environment(pid)
        note(pid, environment)
        if not environment and _patience_s(pid):
            undecided.append(pid)
    start = time.monotonic()
    while undecided:
        time.sleep(_EXEC_AGAIN_S)
        passed_s = time.monotonic() - start
        for pid in tuple(undecided):
            environment = _environment(pid)
            note(pid, environment)
            if environment or (patience_s := _patience_s(pid)) <= passed_s:
                undecided.remove(pid)
                if not environment and patience_s:
                    _hiding.add((pid, ticks_of(pid)))
    return found


def _own_pids() -> Iterator[int]:
    """Every process of this user (root: every process) but this one."""
    uid, me = os.geteuid(), os.getpid()
    for pid in _pids():
        try:
            if pid != me and (uid == 0 or os.stat(f"/proc/{pid}").st_uid == uid):
                yield pid
        except OSError:
            continue


def _environment(pid: int) -> bytes:
    try:
        return _file(pid, "environ")
    except OSError:
        return b""


def _token(environment: bytes) -> bytes:
    """The token in an environment; empty if it has none."""
    start = 0 if environment.startswith(_MARK) else environment.find(b"\0" + _MARK) + 1
    if not start and not environment.startswith(_MARK):
        return b""
    return environment[start + len(_MARK) :].partition(b"\0")[0]


def _patience_s(pid: int) -> float:
    """How long a process that shows no environment may still come to one, in seconds."""
    fields = _stat(pid)
    if fields is None or int(fields[6]) & _KERNEL_THREAD or len(fields) <= 48:
        return 0.0
    if (pid, int(fields[19])) in _hiding:
        return 0.0
    # Fields 50 and 51 of stat say where the environment begins and ends: 0 until exec comes to it, equal for
    # a moment then, and for good in a process that was given none.
    if fields[48] != b"0":
        return _EXEC_EMPTY_S
    return _EXEC_S if os.access(f"/proc/{pid}/environ", os.R_OK) else 0.0


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
