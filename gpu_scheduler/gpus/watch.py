"""Keeps the newest samples of the managed GPUs and the owners of the processes on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from gpu_scheduler.core.model.gpu import LOAD_SAMPLES, Snapshot
from gpu_scheduler.core.scheduling.facts import Attempt, Gpu
from gpu_scheduler.gpus.attribution import NOTHING_WATCHED, Ownership, ProcessOwners, is_alive
from gpu_scheduler.runner.membership import RecordedCommand
from gpu_scheduler.store.records import GpuRecord


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
        known: Mapping[str, tuple[int, bool]],
        tokens: Mapping[str, int],
        command_of: Callable[[str], RecordedCommand | None] = lambda token: None,
        watched: Mapping[tuple[int, int], str] = NOTHING_WATCHED,
    ) -> tuple[Gpu, ...]:
        """Returns the GPUs, sorted by index.

        known: each GPU's index and whether the GPU is paused, by UUID. tokens: the open attempts by token.
        command_of: returns the recorded command of the attempt with a given token. watched: the tokens of
        the attempts that watch a process, by its pid and start in ticks.
        """
        samples = {gpu.uuid: gpu for gpu in self.snapshot.gpus} if self.snapshot else {}
        at = self.snapshot.taken_at if self.snapshot else None
        gpus = []
        for uuid, (index, is_paused) in known.items():
            sample = samples.get(uuid)
            loads = [load for load in self._loads.get(uuid, ()) if load is not None]
            load = sum(loads) / len(loads) if loads else None
            owned = self._owners.ownership_of(sample, tokens, command_of, watched) if sample else Ownership()
            gpus.append(
                Gpu(
                    uuid,
                    sample.index if sample else index,
                    is_paused,
                    sample,
                    at,
                    load,
                    owned.owners,
                    owned.starts,
                    owned.unmatched,
                )
            )
        return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def watched_processes(attempts: Iterable[Attempt]) -> dict[tuple[int, int], str]:
    """Returns the tokens of the open attempts that watch a process, by its pid and start in ticks."""
    return {
        (attempt.watched_pid, attempt.watched_ticks): attempt.token
        for attempt in attempts
        if attempt.state.is_open and attempt.watched_pid is not None and attempt.watched_ticks is not None
    }


def with_stored_values(gpu: Gpu, record: GpuRecord) -> Gpu:
    """Returns a copy of the GPU with the values that only the store contains."""
    return replace(
        gpu,
        total_mib=record.total_mib,
        foreign_peaks=current_peaks(gpu, record.foreign_peaks),
        foreign_loads=record.foreign_loads,
        foreign_load_at=record.foreign_load_boot,
        usable_since=record.usable_since or 0.0,
        suspicion=record.suspicion,
    )


def current_peaks(gpu: Gpu, stored_peaks: Collection[tuple[int, float, int]]) -> dict[tuple[int, float], int]:
    """Returns the stored memory peaks of foreign processes that are alive or in the GPU's newest sample."""
    if not stored_peaks:
        return {}
    processes = (gpu.sample.processes if gpu.sample else None) or ()
    here = {(process.pid, gpu.process_starts.get(process.pid, 0.0)) for process in processes}
    return {
        (pid, start): mib for pid, start, mib in stored_peaks if (pid, start) in here or is_alive(pid, start)
    }
