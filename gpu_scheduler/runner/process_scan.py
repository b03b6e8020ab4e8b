"""Finds the processes of attempts in /proc and signals processes.

`membership` decides which processes belong to an attempt; this module reads the process table for it. A
signal is sent through a pidfd, and only if the process has the expected start time once the pidfd is open. A
reused pid is therefore never signalled. The caller decides which processes to signal, and when. If a scan
runs out of open files or memory, it raises OSError, because it may not have read every process.
"""

from __future__ import annotations

import os
import time

from .folder import (
    COMMAND_FILE,
    COMMAND_SIZE,
    MARKED_DIGITS,
    SHORTAGE,
    TOKEN,
    boot_id,
    fields_of,
    has_ended,
    init_ticks,
    living_fields,
    mark_of,
    try_read_proc,
)
from .membership import Membership, ProcessRow, RecordedCommand, living_descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterable, Iterator, Mapping
else:
    import _signal

#: The text that precedes the token in an environment. While bash is starting, a null byte replaces the "=" of
#: each variable.
_MARKS = tuple(b"\0" + TOKEN.encode() + end for end in (b"=", b"\0"))
_KERNEL_THREAD = 0x00200000
#: The process flag that the kernel sets before an exiting process closes its files and thus releases its
#: locks.
_EXITING = 0x00000004
#: During exec, a process has an empty environment in /proc. An empty environment is therefore read again
#: every _EXEC_RETRY_S seconds, for at most _EXEC_S seconds, unless the process is known not to be in exec.
_EXEC_S = 0.5
_EXEC_RETRY_S = 0.0005
#: Processes (pid, start) that look the same for long, such as those that may not be read. No scan waits for
#: them.
_without_environment: set[tuple[int, int]] = set()
_MAX_WITHOUT_ENVIRONMENT = 4096
#: Zombies (pid, start) that the last scan found. Some zombies are never collected.
_seen_zombies: set[tuple[int, int]] = set()


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def ticks_of(pid: int) -> int | None:
    """Returns the start time of a process in kernel ticks since boot; None if it is gone or a zombie."""
    fields = living_fields(pid)
    return None if fields is None else int(fields[19])


def group_members(group: int) -> dict[int, tuple[int, int]]:
    """Returns the parent and the start time, in ticks, of each living process in a process group, by pid."""
    found = {}
    for pid in _pids():
        fields = living_fields(pid)
        if fields is not None and int(fields[2]) == group:
            found[pid] = int(fields[1]), int(fields[19])
    return found


def group_of(pid: int) -> int | None:
    """Returns the process group of a process; None if it is gone or a zombie."""
    fields = living_fields(pid)
    return None if fields is None else int(fields[2])


def is_running(pid: int, ticks: int) -> bool:
    """Returns whether the process with this pid and start time exists and is not exiting."""
    fields = living_fields(pid)
    return fields is not None and int(fields[19]) == ticks and not int(fields[6]) & _EXITING


def has_terminal(pid: int) -> bool | None:
    """Returns whether a process has a controlling terminal, which it loses on hangup; None if it is gone."""
    fields = living_fields(pid)
    return None if fields is None else fields[4] != b"0"


def descendants(root: int) -> dict[int, int]:
    """Returns the start times, by pid, of all living descendants of `root`."""
    return living_descendants(root, _table(newest_first(), {}, {}, frozenset()).values())


def container_client(pids: Iterable[int] | None = None) -> str:
    """Returns the name of a client among these processes that lets a server run a container; "" if none is.

    pids: None means all descendants of this process.
    """
    try:
        found = descendants(os.getpid()) if pids is None else pids
        names = {try_read_proc(pid, "comm").strip() for pid in found}
    except OSError:
        return ""  # out of file descriptors or memory
    return next((name.decode() for name in (b"docker", b"podman", b"nerdctl") if name in names), "")


def read_recorded_command(folder: int, token: str) -> RecordedCommand | None:
    """Returns the command that an attempt recorded in its folder; None if there is no valid record.

    The runner writes the first line of the record. The command then adds /proc/PID/stat and
    /proc/PID/autogroup. The record is valid until the machine, or the container in which it was written, is
    restarted. Raises OSError for a shortage of open files or memory.
    """
    try:
        fd = os.open(COMMAND_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            text = os.read(fd, COMMAND_SIZE).decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    identity, stat, *rest = [*text.split("\n"), ""]
    if identity.split() != [token, boot_id(), init_ticks()] or not rest[:-1]:
        return None
    # The program name in /proc/PID/stat may contain blanks and parentheses.
    pid, ticks = stat.partition(" ")[0], [*stat.rpartition(")")[2].split(), *[""] * 20][19]
    if not (pid.isdecimal() and ticks.isdecimal()):
        return None
    autogroup = rest[0].split()[:1] if rest[1:-1] else []
    return RecordedCommand(int(pid), int(ticks), autogroup[0] if autogroup else None)


class Scan:
    """The result of one scan of /proc.

    found: for each token, the start times (in ticks) of the attempt's living processes by pid. If all of an
    attempt's processes ended during the scan, one of them is listed with 0, because it may have forked
    others. missed: whether the scan may have missed a process. That is possible if another process ended
    since the last scan or before it was read, because it may have forked one.
    """

    __slots__ = ("found", "missed")

    def __init__(self, found: dict[str, dict[int, int]], missed: bool) -> None:
        self.found, self.missed = found, missed


def scan(attempts: Mapping[str, RecordedCommand | None]) -> Scan:
    """Scans /proc for the processes of these attempts.

    attempts: the command of each attempt by token, None if it was not recorded. Reads only the environments
    and marks of the user's own processes, or of all processes for root. Stops early if no process carries one
    of the tokens or marks or is in the session of one of the commands, because no process can then belong to
    an attempt.
    """
    me, uid = os.getpid(), os.geteuid()
    sessions = frozenset(command.pid for command in attempts.values() if command is not None)
    by_mark = {token[:MARKED_DIGITS]: token for token in attempts}
    tokens: dict[int, str] = {}
    marks: dict[int, str] = {}
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
        _record_token(tokens, pid, own_environment)
        fields = None if own_environment else fields_of(pid)
        if fields is not None and has_ended(fields):
            ended.add((pid, int(fields[19])))
        else:
            living.add(pid)
        missed = missed or (not own_environment and fields is None)
        ticks = None if fields is None else _user_ticks(fields)
        if pid not in tokens and (own_environment or ticks) and (token := by_mark.get(mark_of(pid) or "")):
            marks[pid] = token
        elif ticks is not None and (pid, ticks) not in _without_environment:
            undecided[pid] = ticks
    missed = missed or not ended <= _seen_zombies
    _seen_zombies.clear()
    _seen_zombies.update(ended)
    _reread_environments(undecided, tokens)
    if not in_session and not marks and not any(token in attempts for token in tokens.values()):
        return Scan({}, missed)
    table = _table(pids, tokens, marks, sessions)
    rule = Membership(table.get, attempts, me)
    found = rule.members(table.values())
    known = {*in_session, *tokens, *marks}
    gone = {pid for pid in known if pid not in table or (table[pid].ended and pid in living)}
    for pid in gone:
        token = tokens.get(pid) or marks.get(pid) or rule.owner_of_session(in_session[pid])
        if token is not None and token in attempts:
            found.setdefault(token, {pid: 0})
    return Scan(found, missed)


def newest_first() -> list[int]:
    """Returns all pids, the highest first, so that new processes are read before they can end."""
    return sorted(_pids(), reverse=True)


def _table(
    pids: list[int], tokens: Mapping[int, str], marks: Mapping[int, str], sessions: frozenset[int]
) -> dict[int, ProcessRow]:
    table = {}
    for pid in pids:
        fields = fields_of(pid)
        if fields is not None:
            session = int(fields[3])
            table[pid] = ProcessRow(
                pid,
                int(fields[19]),
                int(fields[1]),
                session,
                has_ended(fields),
                tokens.get(pid),
                autogroup(pid) if session in sessions else None,
                marks.get(pid),
            )
    return table


def autogroup(pid: int) -> str | None:
    """Returns the kernel's autogroup id for the session of a process; None if the kernel has none."""
    return try_read_proc(pid, "autogroup").split(b" ")[0].decode("ascii", "replace") or None


def _reread_environments(undecided: dict[int, int], tokens: dict[int, str]) -> None:
    until = time.monotonic() + _EXEC_S
    while undecided and time.monotonic() < until:
        for pid in tuple(undecided):
            start = _code_address(pid)
            own_environment = environment(pid)
            _record_token(tokens, pid, own_environment)
            # The kernel places the code after the environment. Each program is at another address, so the
            # process was not in exec meanwhile.
            is_empty = start not in (_IN_EXEC, _NOT_READABLE) and start == _code_address(pid)
            if start == _NOT_READABLE:
                _without_environment.add((pid, undecided[pid]))
            if own_environment or start in (None, _NOT_READABLE) or is_empty:
                del undecided[pid]
        if undecided:
            time.sleep(_EXEC_RETRY_S)
    if len(_without_environment) > _MAX_WITHOUT_ENVIRONMENT:
        _without_environment.clear()
    _without_environment.update(
        (pid, ticks) for pid, ticks in undecided.items() if _has_no_memory(pid) or not _shows_addresses()
    )


#: What /proc shows as the address of a program's code during exec, and for a process that may not be read.
_IN_EXEC, _NOT_READABLE = 0, 1


def _code_address(pid: int) -> int | None:
    """Returns the address of the code of a process's program; None if the process has ended."""
    fields = fields_of(pid)
    return None if fields is None or _user_ticks(fields) is None else int(fields[23])


def _has_no_memory(pid: int) -> bool:
    """Returns whether a process is exiting, perhaps for long, or its first thread has ended before others."""
    fields = fields_of(pid)
    return fields is not None and bool(int(fields[6]) & _EXITING)


def _shows_addresses() -> bool:
    """Returns whether /proc shows the addresses of programs, which gVisor does not."""
    return _code_address(os.getpid()) not in (_IN_EXEC, None)


def _record_token(tokens: dict[int, str], pid: int, environment: bytes) -> None:
    token = token_in(environment)
    if token:
        tokens[pid] = token.decode("ascii", "replace")


def environment(pid: int) -> bytes:
    return try_read_proc(pid, "environ")


def token_in(environment: bytes) -> bytes:
    """Returns the token in an environment; b"" if there is none."""
    listed = b"\0" + environment
    for mark in _MARKS:
        at = listed.find(mark)
        if at >= 0:
            return listed[at + len(mark) :].partition(b"\0")[0]
    return b""


def _user_ticks(fields: list[bytes]) -> int | None:
    """Returns the start time of a process, in ticks; None for kernel threads and zombies."""
    return None if has_ended(fields) or int(fields[6]) & _KERNEL_THREAD else int(fields[19])


def shows_own_pids() -> bool:
    """Returns whether /proc shows the pid namespace of this process.

    In the /proc of an outer namespace, the same pid can belong to another process.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def send_signal(pid: int, ticks: int, signal: int) -> bool:
    """Signals the process with this pid and start time; returns whether the signal was sent."""
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
