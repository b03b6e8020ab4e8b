"""Impossible values in GPU samples become unknown, and unknown values never count as zero."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample, without_impossible_values
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.scheduling.gpu_use import foreign_memory
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.show.gpu_text import obstacle_text
from tests.core.gpu_world import ledger

Values = tuple[int | None, int | None, float | None]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ((100, 5, 7.0), (100, 5, 7.0)),
        ((100, 100, 100.0), (100, 100, 100.0)),
        ((None, None, None), (None, None, None)),
        ((0, 0, 0.0), (None, 0, 0.0)),
        ((-1, 5, 0.0), (None, 5, 0.0)),
        ((10**30, 5, 0.0), (None, 5, 0.0)),
        ((None, 10**30, 0.0), (None, None, 0.0)),
        ((100, 101, 0.0), (100, None, 0.0)),
        ((100, -1, 0.0), (100, None, 0.0)),
        ((100, 5, 100.5), (100, 5, None)),
        ((100, 5, -1.0), (100, 5, None)),
        ((100, 5, float("nan")), (100, 5, None)),
    ],
)
def test_impossible_values_in_a_gpu_sample_become_unknown(raw: Values, expected: Values) -> None:
    found = without_impossible_values(GpuSample("GPU-a", 0, "GPU", *raw))
    assert (found.total_mib, found.used_mib, found.load_percent) == expected


@pytest.mark.parametrize(
    ("processes", "foreign"),
    [(None, None), ((GpuProcess(1, None),), None), ((), 0), ((GpuProcess(1, 300), GpuProcess(2, 4)), 304)],
)
def test_foreign_memory_of_a_gpu_without_a_total_is_the_sum_of_its_processes_or_unknown(
    processes: tuple[GpuProcess, ...] | None, foreign: int | None
) -> None:
    """A GB10 shares the memory of its machine. It reports the memory of each process, but no total."""
    sample = GpuSample("GPU-a", 0, "NVIDIA GB10", None, None, 2.0, processes)
    assert foreign_memory(Gpu("GPU-a", 0, sample=sample), (), Limits()) == foreign


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (ledger(0, 100, foreign_mib=None), "memory unknown"),
        (ledger(0, None, foreign_mib=0), None),
        (ledger(0, 0, foreign_mib=0), None),
        (
            ledger(0, 100, foreign_mib=10, foreign_pid=7, mean_foreign_load=None),
            None,
        ),
        (
            ledger(0, 1000, foreign_mib=300, foreign_pid=7, mean_foreign_load=99.0),
            "foreign process 7, load 99 %",
        ),
    ],
)
def test_an_unknown_value_is_neither_zero_nor_full(view: Ledger, why: str | None) -> None:
    found = view.obstacle(Need(1, 500))
    assert (found and obstacle_text(found)) == why
