"""Keeps the newest samples of the managed GPUs and the owners of the processes on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import LOAD_SAMPLES, UNKNOWN_UUID_PREFIX, Gpu, GpuSample, Snapshot
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.runner import process_scan
from gpu_scheduler.runner.process_scan import Membership, RecordedCommand
from gpu_scheduler.system.procfs import PROC, Proc, Process

# Finds the owner of each process on a GPU: the process belongs to an attempt, is foreign, or is unmatched.
#
# `runner.process_scan` decides which processes belong to an attempt. In this module, only the tokens of open
# attempts count: if a scheduler itself runs in a job, its own jobs use the GPUs of that job.
#
# A process that was started elsewhere and that an attempt watches belongs to this attempt, and so do its
# descendants.
#
# A process is also attributed to an attempt if it was attributed to it before, if it shares a session with a
# process of the attempt, or if it is in a cgroup into which the attempt has moved. This evidence is enough to
# account for the memory of the process, but not to end the process.
#
# A probe may list a pid from another pid namespace. Such a pid is looked up among the inner pids of our own
# processes. If it is not found there, it is unmatched: neither ours nor foreign.


_Key = TypeVar("_Key", int, str)
NOTHING_WATCHED: Mapping[tuple[int, int], str] = MappingProxyType({})
#: Half a clock tick in seconds. Two processes with the same pid start at least one tick apart. If the clock
#: was set since the last scheduler ran, a process that is still running is taken for a new one.
_SAME_START_S = 0.005
#: Prefixes of the UUIDs of real GPUs. The driver lists their processes, whereas simulated jobs report their
#: own pids.
_REAL_GPU_PREFIXES = ("GPU-", "MIG-", UNKNOWN_UUID_PREFIX)


class SampleOwners(Struct, frozen=True):
    """The owners of the processes in one sample of a GPU.

    owners: the attempt of each process by pid, None if the process is foreign. starts: the known start times
    by pid, in wall-clock seconds. Both omit a pid that is unmatched or whose process ended before it was
    examined. unmatched: whether any pid is unmatched.
    """

    owners: Mapping[int, int | None] = field(default_factory=dict)
    starts: Mapping[int, float] = field(default_factory=dict)
    unmatched: bool = False


class _KnownProcess(Struct, frozen=True):
    """The process with a listed pid. token: the token of its attempt; None if the process is foreign."""

    process: Process
    token: str | None


class _NoProcess(Enum):
    """The reason why no process can be examined for a listed pid. A hidden process is foreign."""

    HIDDEN = "hidden"
    ENDED = "ended"
    UNMATCHED = "unmatched"


def is_alive(pid: int, start: float, root: str = PROC) -> bool:
    """Returns whether a process is alive. start: its start time in wall-clock seconds, 0 if unknown."""
    proc = Proc(root)
    process = proc.process(pid)
    if process is None:
        return not start and proc.is_hidden(pid)
    return not process.ended and (not start or abs(proc.started_at(process) - start) < _SAME_START_S)


class ProcessOwners:
    """Finds the owners of the processes in each sample. Remembers evidence from earlier samples."""

    def __init__(self, root: str = PROC) -> None:
        self._proc = Proc(root)
        self._open: frozenset[str] = frozenset()
        self._attributions: dict[int, _KnownProcess | _NoProcess] = {}
        self._known: dict[int, _KnownProcess] = {}
        #: Number of consecutive samples in which a pid was listed but had no process.
        self._missed: dict[int, int] = {}
        #: For each session, the start time of one process of each attempt, by token. For each cgroup, the
        #: start time of the first process of each attempt, by token.
        self._sessions: dict[int, dict[str, int]] = {}
        self._cgroups: dict[str, dict[str, int]] = {}
        #: Foreign processes for which all of /proc has already been searched. It is searched again only for
        #: other processes.
        self._searched: set[Process] = set()
        self._carriers: list[tuple[Process, str]] | None = None
        self._inner_pids: dict[int, list[tuple[Process, str]]] | None = None
        self._command_of: Callable[[str], RecordedCommand | None] = lambda token: None
        #: The recorded commands by token; None if a command had not been recorded when this sample was
        #: examined.
        self._commands: dict[str, RecordedCommand | None] = {}
        self._watched: Mapping[tuple[int, int], str] = {}

    def begin_sample(self, pids: Collection[int]) -> None:
        """Begins the attribution of a new sample, which lists these pids."""
        self._attributions, self._carriers, self._inner_pids = {}, None, None
        self._commands = {
            token: command
            for token, command in self._commands.items()
            if command is not None and token in self._open
        }
        self._missed = {pid: count for pid, count in self._missed.items() if pid in pids}
        self._known = {
            pid: known
            for pid, known in self._known.items()
            if pid in pids or (known.token in self._open and self._is_alive(known.process))
        }
        self._searched = {process for process in self._searched if process.pid in pids}
        self._sessions = self._of_open_attempts(self._sessions)
        self._cgroups = self._of_open_attempts(self._cgroups)

    def ownership_of(
        self,
        sample: GpuSample,
        tokens: Mapping[str, int],
        command_of: Callable[[str], RecordedCommand | None] = lambda token: None,
        watched: Mapping[tuple[int, int], str] = NOTHING_WATCHED,
    ) -> SampleOwners:
        """Returns the owners of the processes on a GPU in the newest sample.

        tokens: the open attempts by token. command_of: returns the recorded command of the attempt with a
        given token. watched: the tokens of the attempts that watch a process, by its pid and start in ticks.
        """
        self._open, self._command_of = frozenset(tokens), command_of
        if watched != self._watched:
            # A process that was adopted after the sample was taken must not count as foreign as well.
            self._watched, self._attributions = dict(watched), {}
        owners: dict[int, int | None] = {}
        starts: dict[int, float] = {}
        unmatched = False
        for listed in sample.processes or ():
            found = self._attributions.get(listed.pid)
            if found is None:
                found = self._attributions[listed.pid] = self._attribute(
                    listed.pid, sample.uuid.startswith(_REAL_GPU_PREFIXES)
                )
            if isinstance(found, _KnownProcess):
                owners[listed.pid] = tokens.get(found.token or "")
                starts[listed.pid] = self._proc.started_at(found.process)
            elif found is _NoProcess.HIDDEN:
                owners[listed.pid] = None
            elif found is _NoProcess.UNMATCHED and not listed.graphics_only:
                unmatched = True
        return SampleOwners(owners, starts, unmatched)

    def _attribute(self, pid: int, is_real_gpu: bool) -> _KnownProcess | _NoProcess:
        process, known = self._proc.process(pid), self._known.get(pid)
        if process is None:
            return self._attribute_missing(pid, known, is_real_gpu)
        known_before = known is not None and process.is_same_as(known.process)
        # If /proc does not show every process, one of ours may have the same pid by chance.
        if is_real_gpu and not (known_before or self._proc.sees_all or self._proc.uses_gpu(pid)):
            return self._by_inner_pid(pid, is_real_gpu) or _NoProcess.UNMATCHED
        self._known[pid] = _KnownProcess(process, self._owner(process))
        return self._known[pid]

    def _attribute_missing(
        self, pid: int, known: _KnownProcess | None, is_real_gpu: bool
    ) -> _KnownProcess | _NoProcess:
        """Attributes a pid that /proc does not show: it ended, is hidden, or is in another pid namespace."""
        self._missed[pid] = self._missed.get(pid, 0) + 1
        if known is not None:
            if not self._is_alive(known.process):
                del self._known[pid]
            return known
        if self._proc.sees_all and self._proc.is_hidden(pid):
            return _NoProcess.HIDDEN
        found = self._by_inner_pid(pid, is_real_gpu)
        if found is not None:
            return found
        # If /proc shows every process and a pid is missing for the first time, its process ended after the
        # sample was taken.
        return _NoProcess.ENDED if self._proc.sees_all and self._missed[pid] == 1 else _NoProcess.UNMATCHED

    def _is_alive(self, process: Process) -> bool:
        return process.is_same_as(self._proc.process(process.pid))

    def _of_open_attempts(self, learned: dict[_Key, dict[str, int]]) -> dict[_Key, dict[str, int]]:
        left = {
            key: {token: start for token, start in found.items() if token in self._open}
            for key, found in learned.items()
        }
        return {key: found for key, found in left.items() if found}

    def _owner(self, process: Process) -> str | None:
        token = self._watched_token(process) if self._watched else None
        token = (
            token or self._remembered_token(process) or self._by_rule(process) or self._by_session(process)
        )
        if token is None and process not in self._searched:
            self._find_carriers()
            self._searched.add(process)
            token = self._by_session(process)
        return token or self._by_cgroup(process)

    def _watched_token(self, process: Process) -> str | None:
        """Returns the token of the attempt that watches this process or its nearest watched ancestor.

        Returns None if the process belongs to an attempt of its own, for example of a scheduler that the
        watched process started.
        """
        for link in self._proc.ancestry(process):
            if (link.pid, link.start) in self._watched:
                return self._watched[link.pid, link.start]
            if self._proc.token(link.pid) is not None:
                return None
        return None

    def _remembered_token(self, process: Process) -> str | None:
        known = self._known.get(process.pid)
        return (
            known.token if known and known.token in self._open and process.is_same_as(known.process) else None
        )

    def _open_token(self, process: Process) -> str | None:
        """Returns the token of the open attempt to which a process was attributed, or which it carries.

        Returns None if there is no such attempt.
        """
        token = self._remembered_token(process) or self._proc.token(process.pid)
        return token if token in self._open else None

    def _by_rule(self, process: Process) -> str | None:
        attempts = self._recorded_commands()
        sessions = {command.pid for command in attempts.values() if command is not None}

        @cache
        def row(pid: int) -> process_scan.ProcessRow | None:
            found = process if pid == process.pid else self._proc.process(pid)
            return None if found is None else self._row(found, found.session in sessions)

        own = self._proc.own_process
        token = Membership(row, attempts, own.pid if own else 0).owner(process.pid)
        if token is not None:
            first = process
            for link in self._proc.ancestry(process):
                if self._open_token(link) == token:
                    first = link
            self._record_session_and_cgroup(process, first, token)
        return token

    def _row(self, process: Process, in_session: bool) -> process_scan.ProcessRow:
        autogroup = self._proc.autogroup(process.pid) if in_session else None
        return process_scan.ProcessRow(
            process.pid,
            process.start,
            process.parent,
            process.session,
            process.ended,
            self._open_token(process),
            autogroup,
        )

    def _recorded_commands(self) -> dict[str, RecordedCommand | None]:
        """Returns the recorded commands of the open attempts by token."""
        for token in self._open - self._commands.keys():
            self._commands[token] = self._command_of(token)
        return {token: self._commands[token] for token in self._open}

    def _record_session_and_cgroup(self, process: Process, first: Process, token: str) -> None:
        """Remembers the session and cgroup of an attempt's process. first: the attempt's first process."""
        known = self._sessions.get(process.session, {})
        if token not in known:
            leader = self._leader(process)
            if leader is None or any(self._open_token(link) == token for link in self._proc.ancestry(leader)):
                self._sessions[process.session] = {**known, token: process.start}
        group = self._proc.cgroup(process.pid)
        bases = (self._proc.cgroup("self"), self._proc.cgroup(first.pid))
        if all(base and not _is_in(base, group) for base in bases):
            self._cgroups.setdefault(group, {}).setdefault(token, first.start)

    def _by_session(self, process: Process) -> str | None:
        """Returns the token of the open attempt with a known process in this session.

        Returns None unless there is exactly one such attempt.
        """
        own = self._proc.own_process
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

    def _by_cgroup(self, process: Process) -> str | None:
        """Returns the token of the open attempt that has moved into this process's innermost known cgroup.

        Returns None unless there is exactly one such attempt and it is older than the process.
        """
        group = self._proc.cgroup(process.pid)
        around = [name for name in self._cgroups if _is_in(group, name)]
        if not around:
            return None
        found = self._cgroups[max(around, key=len)]
        tokens = [token for token, start in found.items() if token in self._open]
        return tokens[0] if len(tokens) == 1 and found[tokens[0]] <= process.start else None

    def _by_inner_pid(self, pid: int, is_real_gpu: bool) -> _KnownProcess | None:
        """Returns our process with this inner pid; None unless exactly one attempt has such a process."""
        self._find_carriers()
        if self._inner_pids is None:
            self._inner_pids = {}
            for process, token in self._carriers or ():
                for number in self._proc.inner_pids(process.pid):
                    self._inner_pids.setdefault(number, []).append((process, token))
        meant = [
            _KnownProcess(process, token)
            for process, token in self._inner_pids.get(pid, ())
            if not is_real_gpu or self._proc.uses_gpu(process.pid)
        ]
        if len({known.token for known in meant}) != 1:
            return None
        self._known[pid] = meant[0]
        return meant[0]

    def _find_carriers(self) -> None:
        """Finds every process that carries the token of an open attempt. Searches only once per sample."""
        if self._carriers is not None:
            return
        table = {process.pid: (process, self._proc.token(process.pid)) for process in self._proc.processes()}
        self._carriers = []
        for process, token in table.values():
            if token is None or token not in self._open:
                continue
            self._carriers.append((process, token))
            first = process
            while first.parent in table and table[first.parent][1] == token:
                first = table[first.parent][0]
            self._record_session_and_cgroup(process, first, token)


def _is_in(group: str, outer: str) -> bool:
    """Returns whether a cgroup is `outer` itself or inside it."""
    return group == outer or group.startswith(f"{outer.rstrip('/')}/")


class GpuWatch:
    """The newest snapshot, the mean load over recent samples, and the owner of each process on a GPU."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.failure: str | None = None
        self._loads: dict[str, deque[float | None]] = {}
        self._owners = ProcessOwners()

    def accept_sample(self, snapshot: Snapshot) -> None:
        """Accepts a complete sample."""
        self.snapshot, self.failure = snapshot, None
        self._owners.begin_sample({process.pid for gpu in snapshot.gpus for process in gpu.processes or ()})
        for gpu in snapshot.gpus:
            self._loads.setdefault(gpu.uuid, deque(maxlen=LOAD_SAMPLES)).append(gpu.load_percent)

    def record_failure(self, text: str) -> None:
        """Records that the probe did not answer. No job starts until it answers again."""
        self.snapshot, self.failure = None, text

    def gpus(
        self,
        known: Iterable[Gpu],
        tokens: Mapping[str, int],
        command_of: Callable[[str], RecordedCommand | None] = lambda token: None,
        watched: Mapping[tuple[int, int], str] = NOTHING_WATCHED,
    ) -> tuple[Gpu, ...]:
        """Returns these GPUs with what the last sample shows, sorted by index.

        tokens: the open attempts by token. command_of: returns the recorded command of the attempt with a
        given token. watched: the tokens of the attempts that watch a process, by its pid and start in ticks.
        """
        samples = {gpu.uuid: gpu for gpu in self.snapshot.gpus} if self.snapshot else {}
        at = self.snapshot.taken_at if self.snapshot else None
        gpus = []
        for gpu in known:
            sample = samples.get(gpu.uuid)
            loads = [load for load in self._loads.get(gpu.uuid, ()) if load is not None]
            owned = (
                self._owners.ownership_of(sample, tokens, command_of, watched) if sample else SampleOwners()
            )
            sampled = replace(
                gpu,
                index=sample.index if sample else gpu.index,
                sample=sample,
                sampled_boot=at,
                mean_load=sum(loads) / len(loads) if loads else None,
                owners=owned.owners,
                process_starts=owned.starts,
                has_unmatched_process=owned.unmatched,
            )
            gpus.append(replace(sampled, foreign_peaks=current_peaks(sampled)))
        return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def watched_processes(attempts: Iterable[ActiveAttempt]) -> dict[tuple[int, int], str]:
    """Returns the tokens of the open attempts that watch a process, by its pid and start in ticks."""
    return {
        (attempt.watched_pid, attempt.watched_ticks): attempt.token
        for attempt in attempts
        if attempt.state.is_open and attempt.watched_pid is not None and attempt.watched_ticks is not None
    }


def current_peaks(gpu: Gpu) -> Mapping[tuple[int, float], int]:
    """Returns the stored memory peaks of foreign processes that are alive or in the GPU's newest sample."""
    if not gpu.foreign_peaks:
        return gpu.foreign_peaks
    processes = (gpu.sample.processes if gpu.sample else None) or ()
    here = {(process.pid, gpu.process_starts.get(process.pid, 0.0)) for process in processes}
    return {key: mib for key, mib in gpu.foreign_peaks.items() if key in here or is_alive(*key)}
