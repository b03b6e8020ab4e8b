"""Decides which processes belong to an attempt, by applying one rule to a table of processes. Pure.

A process belongs to the attempt that the first applicable one of these identifies:

1. the token of the process or, without one, the token of its nearest ancestor in the same session
2. the recorded command that leads or led the session, or the attempt to which its living leader belongs
3. the attempt to which the parent of the session belongs, by the same rule
4. the mark of the process, which it inherits and cannot lose (`folder.set_mark`)

The innermost token thus wins: if a scheduler itself runs in a job, its jobs belong to the attempts of that
inner scheduler and are never signalled for the outer job.

The asker (the scheduler, `cancel` or a runner), process 1 and ended processes belong to no attempt. A process
that the asker started can belong to an attempt only by its token, so that a scheduler that was started in the
session of a job ends neither itself nor its helpers.

The callers read /proc and pass the attempts in question. They omit an attempt whose processes must never be
signalled, such as one that watches a process it did not start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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
    """The rule, applied to a given set of attempts.

    process: returns the row for a pid, or None if there is no such process. attempts: the command of each
    attempt by token, None if it was not recorded. asker: the pid of the process that asks.
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
