"""Learns the GPU memory of a job from the peaks of earlier runs of its workload class (`start --learn`).

`needs` applies the learned memory to jobs that declare nothing. `calibration` suggests declarations instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.scheduling.accounting import with_spike_buffer
from gpu_scheduler.core.scheduling.needs import workload_class_key

#: The quantile of the peaks on which a learned need is based.
QUANTILE = 0.95


@dataclass(frozen=True)
class WorkloadClass:
    """The completed runs of one program with one model, or without a model (llm is None).

    declared_mib: the declaration of the newest run; None if it declared no memory. gpus: the smallest number
    of GPUs that a run used. mean_s, longest_s: run times in seconds; None if unknown.
    """

    program: str
    llm: str | None
    runs: int
    max_mib: int
    p95_mib: int
    declared_mib: int | None
    gpus: int
    mean_s: float | None
    longest_s: float | None = None

    @property
    def key(self) -> str:
        """The key of the class, which is also in the resource specs of the class's jobs."""
        return workload_class_key(self.program, self.llm)


def quantile(values: Sequence[int], q: float = QUANTILE) -> int:
    """Returns the q-quantile of the values by the nearest-rank method, which returns one of the values."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def learned_needs(classes: Iterable[WorkloadClass], spike_buffer: float) -> dict[str, int]:
    """Returns the MiB for each workload class: the 95th percentile of its peaks plus the spike buffer."""
    return {one.key: with_spike_buffer(one.p95_mib, spike_buffer) for one in classes}
