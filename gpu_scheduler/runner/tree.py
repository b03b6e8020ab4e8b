"""The processes of attempts, read from /proc, and signals to them.

`membership` decides which processes these are; this module reads the table that it asks for. A signal goes
through a pidfd of a process whose start was checked after the pidfd was opened, so that a pid that was given
away meanwhile is never hit. It decides neither whom to signal nor when. A look for which open files or memory
are lacking raises OSError: it has not found that nobody is there.
"""

from __future__ import annotations

import os
import time

from .folder import SHORTAGE, TOKEN
from .membership import Membership, Process, below

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator, Mapping

    from .membership import Command
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
#: The zombies (pid, start) that the last scan saw. Some are never collected.
_ended: set[tuple[int, int]] = set()


def _file(pid: int, name: str) -> bytes:
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 17), b""))
    finally:
        os.close(fd)


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on; None for a process that is gone or a zombie."""
    fields = fields_of(pid)
    return None if fields is None or has_ended(fields) else fields


def fields_of(pid: int) -> list[bytes] | None:
    """The same, also of a zombie."""
    try:
        return _file(pid, "stat").rpartition(b")")[2].split() or None
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None


def has_ended(fields: list[bytes]) -> bool:
    # The first thread of a process that lives on in others shows as a zombie too.
    return fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1


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
    return below(root, _table(newest_first(), {}, frozenset()).values())


class Scan:
    """What one look at /proc has found.

    found: token -> the living processes of the attempt, with their start ticks. Where there was one that has
    ended meanwhile, and no other, it stands for those that it may have left, with 0.
    missed: a process ended since the last scan, or before it was looked at; it may have left another one.
    """

    __slots__ = ("found", "missed")

    def __init__(self, found: dict[str, dict[int, int]], missed: bool) -> None:
        self.found, self.missed = found, missed


def scan(attempts: Mapping[str, Command | None]) -> Scan:
    """Look for the processes of these attempts (token -> its command, None = not recorded).

    Environments are read of the own user's processes only (root: of all). Without a carrier of a token and
    without a member of a session no process can belong to an attempt: then nothing more is read.
    """
    me, uid = os.getpid(), os.geteuid()
    sessions = frozenset(command.pid for command in attempts.values() if command is not None)
    tokens: dict[int, str] = {}
    in_session: dict[int, int] = {}
    undecided: dict[int, int] = {}
    missed = False
    ended: set[tuple[int, int]] = set()
    living: set[int] = set()
    pids = newest_first()
    for pid in pids:
        try:
            session = os.getsid(pid) if sessions else 0
            own = uid == 0 or os.stat(f"/proc/{pid}").st_uid == uid
        except OSError:
            missed = True
            continue
        if session in sessions and pid != me:
            in_session[pid] = session
        if not own or pid in (1, me):
            continue
        own_environment = environment(pid)
        _note(tokens, pid, own_environment)
        fields = None if own_environment else fields_of(pid)
        if fields is not None and has_ended(fields):
            ended.add((pid, int(fields[19])))
        else:
            living.add(pid)
        missed = missed or (not own_environment and fields is None)
        ticks = None if fields is None else _user_ticks(fields)
        if ticks is not None and (pid, ticks) not in _bare:
            undecided[pid] = ticks
    missed = missed or not ended <= _ended
    _ended.clear()
    _ended.update(ended)
    _ask_again(undecided, tokens)
    if not in_session and not any(token in attempts for token in tokens.values()):
        return Scan({}, missed)
    table = _table(pids, tokens, sessions)
    rule = Membership(table.get, attempts, me)
    found = rule.members(table.values())
    gone = {pid for pid in {*in_session, *tokens} if pid not in table or (table[pid].ended and pid in living)}
    for pid in gone:
        token = tokens.get(pid) or rule.of_session(in_session[pid])
        if token is not None and token in attempts:
            found.setdefault(token, {pid: 0})
    return Scan(found, missed)


def newest_first() -> list[int]:
    """Every pid. The newest processes are looked at first: one that does not live long is seen in time."""
    return sorted(_pids(), reverse=True)


def _table(pids: list[int], tokens: Mapping[int, str], sessions: frozenset[int]) -> dict[int, Process]:
    table = {}
    for pid in pids:
        fields = fields_of(pid)
        if fields is not None:
            session = int(fields[3])
            table[pid] = Process(
                pid,
                int(fields[19]),
                int(fields[1]),
                session,
                has_ended(fields),
                tokens.get(pid),
                autogroup(pid) if session in sessions else None,
            )
    return table


def autogroup(pid: int) -> str | None:
    """The kernel's name for the session of a process; None where it has none."""
    try:
        return _file(pid, "autogroup").split(b" ")[0].decode("ascii", "replace") or None
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None


def _ask_again(undecided: dict[int, int], tokens: dict[int, str]) -> None:
    until = time.monotonic() + _EXEC_S
    while undecided and time.monotonic() < until:
        time.sleep(_EXEC_AGAIN_S)
        for pid in tuple(undecided):
            own_environment = environment(pid)
            _note(tokens, pid, own_environment)
            fields = fields_of(pid)
            if own_environment or fields is None or _user_ticks(fields) is None:
                del undecided[pid]
    if len(_bare) > _BARE_AT_MOST:
        _bare.clear()
    _bare.update(undecided.items())


def _note(tokens: dict[int, str], pid: int, environment: bytes) -> None:
    token = token_in(environment)
    if token:
        tokens[pid] = token.decode("ascii", "replace")


def environment(pid: int) -> bytes:
    try:
        return _file(pid, "environ")
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return b""


def token_in(environment: bytes) -> bytes:
    """The token in an environment; empty if it has none."""
    listed = b"\0" + environment
    for mark in _MARKS:
        at = listed.find(mark)
        if at >= 0:
            return listed[at + len(mark) :].partition(b"\0")[0]
    return b""


def _user_ticks(fields: list[bytes]) -> int | None:
    """The start of a process that may have an environment; None for kernel threads and zombies."""
    return None if has_ended(fields) or int(fields[6]) & _KERNEL_THREAD else int(fields[19])


def shows_own_pids() -> bool:
    """Whether /proc shows the pid namespace of this process. In that of an outer one, a pid is another
    process's."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def send(pid: int, ticks: int, signal: int) -> bool:
    """Signal the process with this pid and start. False: it is gone, or not ours to signal."""
    if not shows_own_pids():
        return False
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
