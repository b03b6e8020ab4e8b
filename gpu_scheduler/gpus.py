"""The managed GPUs as the loop knows them: their newest samples, and whose processes are on them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import psutil

from gpu_scheduler.core.facts import Gpu
from gpu_scheduler.core.gpu import GpuSample, Snapshot
from gpu_scheduler.core.gpulist import parse_gpu_list
from gpu_scheduler.core.recovery import UNREADABLE
from gpu_scheduler.errors import UsageError

#: Samples over which the load is averaged (DESIGN §6).
LOAD_SAMPLES = 3


def choose(samples: Sequence[GpuSample], option: str | None) -> list[GpuSample]:
    """The GPUs that `--gpus` names: a count such as "4", a list such as "0,2,3" or "3,", or all (None).

    Raises UsageError that says how many there are.
    """
    found = f"{len(samples)} GPU{'' if len(samples) == 1 else 's'} found"
    if option is None:
        return list(samples)
    if re.fullmatch(r"[0-9]+", option.strip()):
        count = int(option)
        if not 1 <= count <= len(samples):
            raise UsageError(
                f"--gpus {option}: {found}; give a count from 1 to {len(samples)}, or leave it out"
            )
        return list(samples[:count])
    try:
        indices = parse_gpu_list(option.strip().removesuffix(","), frozenset(s.index for s in samples))
    except ValueError as error:
        raise UsageError(f"--gpus {option}: {error}; {found}") from None
    return list(samples) if indices is None else [s for s in samples if s.index in indices]


class GpuWatch:
    """The newest snapshot, the load over the last ones, and the owner of each process on a GPU."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.failure: str | None = None
        self._loads: dict[str, deque[float | None]] = {}
        self._owners: dict[tuple[int, float], str | None] = {}

    def take(self, snapshot: Snapshot) -> None:
        """A complete sample has come."""
        self.snapshot, self.failure = snapshot, None
        pids = {process.pid for gpu in snapshot.gpus for process in gpu.processes or ()}
        self._owners = {key: token for key, token in self._owners.items() if key[0] in pids}
        for gpu in snapshot.gpus:
            self._loads.setdefault(gpu.uuid, deque(maxlen=LOAD_SAMPLES)).append(gpu.load_percent)

    def fail(self, text: str) -> None:
        """The probe did not answer: nothing is placed until it does."""
        self.snapshot, self.failure = None, f"{UNREADABLE}{text}"

    def gpus(self, paused: Mapping[str, tuple[int, bool]], tokens: Mapping[str, int]) -> tuple[Gpu, ...]:
        """The managed GPUs. paused: UUID -> (index, paused); tokens: token -> attempt of ours."""
        samples = {gpu.uuid: gpu for gpu in self.snapshot.gpus} if self.snapshot else {}
        at = self.snapshot.taken_at if self.snapshot else None
        gpus = []
        for uuid, (index, is_paused) in paused.items():
            sample = samples.get(uuid)
            loads = [load for load in self._loads.get(uuid, ()) if load is not None]
            load = sum(loads) / len(loads) if loads else None
            owners = self._whose(sample, tokens) if sample else {}
            gpus.append(Gpu(uuid, sample.index if sample else index, is_paused, sample, at, load, owners))
        return tuple(sorted(gpus, key=lambda gpu: gpu.index))

    def _whose(self, sample: GpuSample, tokens: Mapping[str, int]) -> dict[int, int | None]:
        owners: dict[int, int | None] = {}
        for process in sample.processes or ():
            token = self._token(process.pid, tokens)
            owners[process.pid] = tokens.get(token) if token else None
        return owners

    def _token(self, pid: int, tokens: Collection[str]) -> str | None:
        """The token that a process, or the nearest of its parents, carries."""
        try:
            process = psutil.Process(pid)
            key = (pid, process.create_time())
            if key not in self._owners:
                self._owners[key] = next(
                    (t for p in [process, *process.parents()] if (t := _carried(p)) in tokens), None
                )
            return self._owners[key]
        except psutil.Error:
            return None


def _carried(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("GPU_SCHEDULER_TOKEN")
    except (psutil.Error, OSError):
        return None
