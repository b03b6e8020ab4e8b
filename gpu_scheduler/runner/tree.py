"""Which processes belong to an attempt, by descent or by the token in their environment, and signals to them.

A signal goes through a pidfd of a process whose start was checked after the pidfd was opened, so that a pid
that was given away meanwhile is never hit. It decides neither whom to signal nor when. Zombies are not alive.
A look for which open files or memory are lacking raises OSError: it has not found that nobody is there.
"""

from __future__ import annotations

import os
import time

from .folder import SHORTAGE, TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Collection, Iterator
else:
    import _signal

#: How the token stands in an environment; while bash starts, its variables have a zero for the "=".
_MARKS = tuple(b"\0" + TOKEN.encode() + end for end in (b"=", b"\0"))
_KERNEL_THREAD = 0x00200000
#: Set before a process that ends lets go of its files, and so of its locks.
_EXITING = 0x00000004
#: A process inside exec shows an empty environment: it is asked again, so long and so often (seconds).
_EXEC_S = 0.05
_EXEC_AGAIN_S = 0.0005
#: Processes (pid, start) that showed none for so long: they were given none, and are not waited for again.
_bare: set[tuple[int, int]] = set()
_BARE_AT_MOST = 4096


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
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    return None if not fields or fields[0] in (b"Z", b"X", b"x") else fields


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def ticks_of(pid: int) -> int | None:
    """When a process started, in kernel ticks since boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def is_running(pid: int, ticks: int) -> bool:
    """Whether the process with this pid and start is there and not about to end."""
    fields = _stat(pid)
    return fields is not None and int(fields[19]) == ticks and not int(fields[6]) & _EXITING


def has_terminal(pid: int) -> bool | None:
    """Whether a process has a controlling terminal, which it loses when that hangs up; None: it is gone."""
    fields = _stat(pid)
    return None if fields is None else fields[4] != b"0"


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

    undecided = {}
    for pid in _own_pids():
        environment = _environment(pid)
        note(pid, environment)
        ticks = None if environment else _user_ticks(pid)
        if ticks is not None and (pid, ticks) not in _bare:
            undecided[pid] = ticks
    until = time.monotonic() + _EXEC_S
    while undecided and time.monotonic() < until:
        time.sleep(_EXEC_AGAIN_S)
        for pid in tuple(undecided):
            environment = _environment(pid)
            note(pid, environment)
            if environment or _user_ticks(pid) is None:
                del undecided[pid]
    if len(_bare) > _BARE_AT_MOST:
        _bare.clear()
    _bare.update(undecided.items())
    return found


def _own_pids() -> Iterator[int]:
    """Every process of this user (root: every process) but this one and the first, which is nobody's job."""
    uid, me = os.geteuid(), os.getpid()
    for pid in _pids():
        try:
            if pid not in (1, me) and (uid == 0 or os.stat(f"/proc/{pid}").st_uid == uid):
                yield pid
        except OSError:
            continue


def _environment(pid: int) -> bytes:
    try:
        return _file(pid, "environ")
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return b""


def _token(environment: bytes) -> bytes:
    """The token in an environment; empty if it has none."""
    listed = b"\0" + environment
    for mark in _MARKS:
        at = listed.find(mark)
        if at >= 0:
            return listed[at + len(mark) :].partition(b"\0")[0]
    return b""


def _user_ticks(pid: int) -> int | None:
    """The start of a process that may have an environment; None for kernel threads, zombies, those gone."""
    fields = _stat(pid)
    return None if fields is None or int(fields[6]) & _KERNEL_THREAD else int(fields[19])


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
