"""Whose a process on a GPU is: an attempt's, somebody else's, or not to be told from here.

`runner.membership` decides which processes belong to an attempt. Here a token of an attempt that is not open
counts as none: the jobs of a scheduler which a job started use the GPUs of that job. Besides, a process is
taken for an attempt's if it was seen to be before, if it is in a session of which a member was, or in a
cgroup that the attempt moved to: enough to account for its memory, not to end it. A number that a probe lists
may be of another pid namespace than ours: it is then looked for among the inner numbers of our own processes,
and is otherwise unmatched, which is neither ours nor foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from gpu_scheduler.core.gpu import NAMELESS, GpuSample
from gpu_scheduler.procfs import PROC, Proc, Process
from gpu_scheduler.runner import membership
from gpu_scheduler.runner.membership import Command, Membership

_Key = TypeVar("_Key", int, str)
#: Starts of two processes with one number differ by a clock tick at least; half of one, in seconds. Where the
#: clock was set between two schedulers the process counts as another one, and never twice.
_SAME_START_S = 0.005
#: GPUs whose processes are told by a driver; those of simulated ones tell their numbers themselves.
_CARDS = ("GPU-", "MIG-", NAMELESS)


@dataclass(frozen=True)
class Ownership:
    """The processes of one sample of a GPU.

    owners: pid -> attempt (None = foreign); starts: pid -> wall seconds, where it is known. A pid that has
    just died unseen, or that is unmatched, is in neither. unmatched: there is one that cannot be told.
    """

    owners: Mapping[int, int | None] = field(default_factory=dict)
    starts: Mapping[int, float] = field(default_factory=dict)
    unmatched: bool = False


@dataclass(frozen=True)
class _Known:
    """A process that a listed number means, and the token of its attempt (None = foreign)."""

    process: Process
    token: str | None


@dataclass(frozen=True)
class _Answer:
    """known: the process is there, or was; token and start then say what is known of it."""

    known: bool = True
    token: str | None = None
    start: float | None = None
    unmatched: bool = False


_GONE = _Answer(known=False)
_UNMATCHED = _Answer(known=False, unmatched=True)


def is_alive(pid: int, start: float, root: str = PROC) -> bool:
    """Whether the process that began at `start` (wall seconds, 0 = not known) has not ended."""
    proc = Proc(root)
    process = proc.process(pid)
    if process is None:
        return not start and proc.hides(pid)
    return not process.ended and (not start or abs(proc.seconds(process) - start) < _SAME_START_S)


class Owners:
    """The owner of each listed process. Answers are kept for one sample, and what they rest on for longer."""

    def __init__(self, root: str = PROC) -> None:
        self._proc = Proc(root)
        self._open: frozenset[str] = frozenset()
        self._answers: dict[int, _Answer] = {}
        self._known: dict[int, _Known] = {}
        #: In how many samples in a row a listed number was that of no process.
        self._missed: dict[int, int] = {}
        #: Session -> token -> start of a member; cgroup -> token -> start of the attempt's first process.
        self._sessions: dict[int, dict[str, int]] = {}
        self._groups: dict[str, dict[str, int]] = {}
        #: Foreign processes for which all of /proc was searched; it is not again while they stay as they are.
        self._searched: set[Process] = set()
        self._carriers: list[tuple[Process, str]] | None = None
        self._inner: dict[int, list[tuple[Process, str]]] | None = None
        self._command_of: Callable[[str], Command | None] = lambda token: None
        #: Recorded commands; those that were not there when this sample asked for them.
        self._commands: dict[str, Command | None] = {}

    def take(self, pids: Collection[int]) -> None:
        """A new sample lists these processes."""
        self._answers, self._carriers, self._inner = {}, None, None
        self._commands = {
            token: command
            for token, command in self._commands.items()
            if command is not None and token in self._open
        }
        self._missed = {pid: count for pid, count in self._missed.items() if pid in pids}
        self._known = {
            pid: known
            for pid, known in self._known.items()
            if pid in pids or (known.token in self._open and self._lives(known.process))
        }
        self._searched = {process for process in self._searched if process.pid in pids}
        self._sessions = self._of_open_attempts(self._sessions)
        self._groups = self._of_open_attempts(self._groups)

    def of(
        self,
        sample: GpuSample,
        tokens: Mapping[str, int],
        command_of: Callable[[str], Command | None] = lambda token: None,
    ) -> Ownership:
        """Whose the processes of a GPU of the newest sample are.

        tokens: token -> open attempt; command_of: the command that the attempt of a token has recorded.
        """
        self._open, self._command_of = frozenset(tokens), command_of
        owners: dict[int, int | None] = {}
        starts: dict[int, float] = {}
        unmatched = False
        for listed in sample.processes or ():
            answer = self._answers.get(listed.pid)
            if answer is None:
                answer = self._answers[listed.pid] = self._judge(listed.pid, sample.uuid.startswith(_CARDS))
            if answer.known:
                owners[listed.pid] = tokens.get(answer.token or "")
            if answer.start is not None:
                starts[listed.pid] = answer.start
            unmatched = unmatched or (answer.unmatched and not listed.graphics_only)
        return Ownership(owners, starts, unmatched)

    def _judge(self, pid: int, card: bool) -> _Answer:
        process, known = self._proc.process(pid), self._known.get(pid)
        if process is None:
            return self._without_process(pid, known, card)
        seen_before = known is not None and process.same(known.process)
        # Where not every process is seen, the number may be that of one of ours by chance alone.
        if card and not (seen_before or self._proc.sees_all or self._proc.uses_gpu(pid)):
            return self._by_inner_number(pid, card) or _UNMATCHED
        self._known[pid] = _Known(process, self._owner(process))
        return self._answer(self._known[pid])

    def _without_process(self, pid: int, known: _Known | None, card: bool) -> _Answer:
        """The number is that of no process: it has died, hides itself, or is one of another namespace."""
        self._missed[pid] = self._missed.get(pid, 0) + 1
        if known is not None:
            if not self._lives(known.process):
                del self._known[pid]
            return self._answer(known)
        if self._proc.sees_all and self._proc.hides(pid):
            return _Answer()
        found = self._by_inner_number(pid, card)
        if found is not None:
            return found
        # Where every process is seen, a number that is missing for the first time has died since the sample.
        return _GONE if self._proc.sees_all and self._missed[pid] == 1 else _UNMATCHED

    def _answer(self, known: _Known) -> _Answer:
        return _Answer(token=known.token, start=self._proc.seconds(known.process))

    def _lives(self, process: Process) -> bool:
        return process.same(self._proc.process(process.pid))

    def _of_open_attempts(self, learned: dict[_Key, dict[str, int]]) -> dict[_Key, dict[str, int]]:
        left = {
            key: {token: start for token, start in found.items() if token in self._open}
            for key, found in learned.items()
        }
        return {key: found for key, found in left.items() if found}

    def _owner(self, process: Process) -> str | None:
        token = self._remembered(process) or self._by_rule(process) or self._by_session(process)
        if token is None and process not in self._searched:
            self._search()
            self._searched.add(process)
            token = self._by_session(process)
        return token or self._by_group(process)

    def _remembered(self, process: Process) -> str | None:
        known = self._known.get(process.pid)
        return known.token if known and known.token in self._open and process.same(known.process) else None

    def _carried(self, process: Process) -> str | None:
        """The token of an open attempt that it carries, or was seen to have."""
        token = self._remembered(process) or self._proc.token(process.pid)
        return token if token in self._open else None

    def _by_rule(self, process: Process) -> str | None:
        attempts = self._recorded()
        sessions = {command.pid for command in attempts.values() if command is not None}

        @cache
        def row(pid: int) -> membership.Process | None:
            found = process if pid == process.pid else self._proc.process(pid)
            return None if found is None else self._row(found, found.session in sessions)

        own = self._proc.own
        token = Membership(row, attempts, own.pid if own else 0).owner(process.pid)
        if token is not None:
            first = process
            for link in self._proc.line(process):
                if self._carried(link) == token:
                    first = link
            self._learn(process, first, token)
        return token

    def _row(self, process: Process, in_session: bool) -> membership.Process:
        autogroup = self._proc.autogroup(process.pid) if in_session else None
        return membership.Process(
            process.pid,
            process.start,
            process.parent,
            process.session,
            process.ended,
            self._carried(process),
            autogroup,
        )

    def _recorded(self) -> dict[str, Command | None]:
        """The open attempts and their commands."""
        for token in self._open - self._commands.keys():
            self._commands[token] = self._command_of(token)
        return {token: self._commands[token] for token in self._open}

    def _learn(self, process: Process, first: Process, token: str) -> None:
        """What this process of an attempt says of its session and its cgroup. first: the attempt's runner."""
        known = self._sessions.get(process.session, {})
        if token not in known:
            leader = self._leader(process)
            if leader is None or any(self._carried(link) == token for link in self._proc.line(leader)):
                self._sessions[process.session] = {**known, token: process.start}
        group = self._proc.cgroup(process.pid)
        bases = (self._proc.cgroup("self"), self._proc.cgroup(first.pid))
        if all(base and not _is_in(base, group) for base in bases):
            self._groups.setdefault(group, {}).setdefault(token, first.start)

    def _by_session(self, process: Process) -> str | None:
        """The attempt of which a member of this session was seen."""
        own = self._proc.own
        if process.session in (0, own.session if own else 0):
            return None
        leader = self._leader(process)
        found = {
            token
            for token, start in self._sessions.get(process.session, {}).items()
            if token in self._open and (leader is None or leader.start <= start)
        }
        return found.pop() if len(found) == 1 else None

    def _leader(self, process: Process) -> Process | None:
        leader = self._proc.process(process.session)
        return None if leader is None or leader.ended else leader

    def _by_group(self, process: Process) -> str | None:
        """The innermost cgroup around it that one open attempt, older than it, has moved to."""
        group = self._proc.cgroup(process.pid)
        around = [name for name in self._groups if _is_in(group, name)]
        if not around:
            return None
        found = self._groups[max(around, key=len)]
        tokens = [token for token, start in found.items() if token in self._open]
        return tokens[0] if len(tokens) == 1 and found[tokens[0]] <= process.start else None

    def _by_inner_number(self, pid: int, card: bool) -> _Answer | None:
        """The process of ours that has this number in a pid namespace below ours, if it is one attempt's."""
        self._search()
        if self._inner is None:
            self._inner = {}
            for process, token in self._carriers or ():
                for number in self._proc.inner_numbers(process.pid):
                    self._inner.setdefault(number, []).append((process, token))
        meant = [
            _Known(process, token)
            for process, token in self._inner.get(pid, ())
            if not card or self._proc.uses_gpu(process.pid)
        ]
        if len({known.token for known in meant}) != 1:
            return None
        self._known[pid] = meant[0]
        return self._answer(meant[0])

    def _search(self) -> None:
        """Find every process that carries an open token, once a sample."""
        if self._carriers is not None:
            return
        seen = {process.pid: (process, self._proc.token(process.pid)) for process in self._proc.processes()}
        self._carriers = []
        for process, token in seen.values():
            if token is None or token not in self._open:
                continue
            self._carriers.append((process, token))
            first = process
            while first.parent in seen and seen[first.parent][1] == token:
                first = seen[first.parent][0]
            self._learn(process, first, token)


def _is_in(group: str, outer: str) -> bool:
    """Whether a cgroup is the other one or below it."""
    return group == outer or group.startswith(f"{outer.rstrip('/')}/")
