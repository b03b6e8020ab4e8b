"""Finds the processes in /proc that belong to attempts, and signals processes.

`Membership` is the only rule for what belongs to an attempt; `scan` reads the process table for it. A
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable, Iterator, Mapping
else:
    import _signal


class RecordedCommand:
    """The command of an attempt, as it recorded itself. It leads its own session.

    ticks: its start time in kernel ticks since boot. autogroup: the kernel's id of its session, which is
    unique until the next boot, or None if the kernel has no such ids.
    """

    __slots__ = ("autogroup", "pid", "ticks")

    def __init__(self, pid: int, ticks: int, autogroup: str | None = None) -> None:
        self.pid, self.ticks, self.autogroup = pid, ticks, autogroup


class ProcessRow:
    """A row of the process table.

    start: the start time in kernel ticks since boot. ended: whether the process is a zombie. token: the token
    of its attempt, or None if it has none or its environment cannot be read. mark: the token of the given
    attempt with which it is marked.
    """

    __slots__ = ("autogroup", "ended", "mark", "parent", "pid", "session", "start", "token")

    def __init__(
        self,
        pid: int,
        start: int,
        parent: int,
        session: int,
        ended: bool = False,
        token: str | None = None,
        autogroup: str | None = None,
        mark: str | None = None,
    ) -> None:
        self.pid, self.start, self.parent, self.session = pid, start, parent, session
        self.ended, self.token, self.autogroup, self.mark = ended, token, autogroup, mark


class Membership:
    """The rule by which processes belong to attempts, applied to a given set of attempts. Pure.

    A process belongs to the attempt that the first applicable one of these identifies:

    1. the token of the process or, without one, the token of its nearest ancestor in the same session
    2. the recorded command that leads or led the session, or the attempt to which its living leader belongs
    3. the attempt to which the parent of the session belongs, by the same rule
    4. the mark of the process, which it inherits and cannot lose (`folder.set_mark`)

    The innermost token thus wins: if a scheduler itself runs in a job, its jobs belong to the attempts of
    that inner scheduler and are never signalled for the outer job.

    The asker (the scheduler, `cancel` or a runner), process 1 and ended processes belong to no attempt. A
    process that the asker started can belong to an attempt only by its token, so that a scheduler that was
    started in the session of a job ends neither itself nor its helpers.

    process: returns the row for a pid, or None if there is no such process. attempts: the command of each
    attempt in question by token, None if it was not recorded; without an attempt whose processes must never
    be signalled, such as one that watches a process it did not start. asker: the pid of the process that
    asks.
    """

    def __init__(
        self,
        process: Callable[[int], ProcessRow | None],
        attempts: Mapping[str, RecordedCommand | None],
        asker: int = 0,
    ) -> None:
        self._process = process
        self._attempts = attempts
        self._asker = asker
        self._by_leader: dict[int, list[tuple[str, RecordedCommand]]] = {}
        for token, command in attempts.items():
            if command is not None:
                self._by_leader.setdefault(command.pid, []).append((token, command))
        self._owners: dict[int, str | None] = {}

    def members(self, processes: Iterable[ProcessRow]) -> dict[str, dict[int, int]]:
        """Returns the given processes that are alive and belong to an attempt.

        The result gives, for each token, the start times of the attempt's processes by pid.
        """
        found: dict[str, dict[int, int]] = {}
        for process in processes:
            token = None if process.ended else self.owner(process.pid)
            if token is not None:
                found.setdefault(token, {})[process.pid] = process.start
        return found

    def owner(self, pid: int) -> str | None:
        """Returns the token of the given attempt to which the process belongs; None if it belongs to none."""
        if pid not in self._owners:
            self._owners[pid] = None  # a provisional value, so that a cycle of parents cannot recurse forever
            self._owners[pid] = self._owner(pid)
        return self._owners[pid]

    def owner_of_session(self, session: int) -> str | None:
        """Returns the token of the attempt whose command leads or led this session; None if there is none.

        Also returns None if the session id has been reused.
        """
        leader = self._process(session)
        for token, command in self._by_leader.get(session, ()):
            if leader is None or leader.start == command.ticks:
                return token
        return None

    def _owner(self, pid: int) -> str | None:
        line = self._ancestry(pid)
        started_by_asker = any(link.pid == self._asker for link in line)
        for link, parent in zip(line, [*line[1:], None], strict=False):
            if link.pid == self._asker:
                return None
            if link.token is not None:
                return link.token if link.token in self._attempts else None
            if not started_by_asker and (parent is None or parent.session != link.session):
                token = self._session_owner(link)
                if token is not None:
                    return token
        return line[0].mark if line else None

    def _ancestry(self, pid: int) -> list[ProcessRow]:
        """Returns the process and its ancestors, without process 1."""
        line: list[ProcessRow] = []
        link = self._process(pid)
        while link is not None and link.pid > 1 and link not in line:
            line.append(link)
            parent = self._process(link.parent)
            # A parent that started later than its child has reused the pid of the real parent.
            link = parent if parent is not None and parent.start <= link.start else None
        return line

    def _session_owner(self, process: ProcessRow) -> str | None:
        if process.session <= 1:
            return None
        leader = self._process(process.session)
        for token, command in self._by_leader.get(process.session, ()):
            if _is_in_session(process, leader, command):
                return token
        if leader is None or leader.ended or leader.pid == process.pid or leader.start > process.start:
            return None
        return self.owner(leader.pid)


def _is_in_session(process: ProcessRow, leader: ProcessRow | None, command: RecordedCommand) -> bool:
    if leader is not None:
        return leader.start == command.ticks
    # The kernel does not reuse the id of a session that still has processes, but the id may have belonged to
    # another session before the command started.
    same = command.autogroup is None or process.autogroup in (None, command.autogroup)
    return same and process.start >= command.ticks


def living_descendants(root: int, processes: Iterable[ProcessRow]) -> dict[int, int]:
    """Returns the start times, by pid, of the given processes that are alive and descend from `root`."""
    children: dict[int, list[ProcessRow]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: dict[int, int] = {}
    parents = [root]
    while parents:
        for process in children.get(parents.pop(), ()):
            if not process.ended and process.pid not in found:
                found[process.pid] = process.start
                parents.append(process.pid)
    return found


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
