"""Tests how GPU memory needs are learned from the peaks of earlier runs."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.scheduling.needs import WorkloadClass, learned_needs, quantile


@pytest.mark.parametrize(
    ("count", "nearest"), [(1, 1), (2, 2), (10, 10), (19, 19), (20, 19), (21, 20), (100, 95), (200, 190)]
)
def test_a_quantile_is_the_value_at_the_nearest_rank(count: int, nearest: int) -> None:
    values = list(range(count, 0, -1))
    assert quantile(values) == nearest
    assert sum(value <= nearest for value in values) >= 0.95 * count
    assert sum(value <= nearest - 1 for value in values) < 0.95 * count


def test_the_learned_need_is_the_95th_percentile_of_the_peaks_plus_the_spike_buffer() -> None:
    qwen = WorkloadClass("t.py", "qwen", 20, 9000, 8000, declared_mib=100, gpus=1, mean_s=1.0)
    assert learned_needs([qwen], 0.10) == {'["t.py", "qwen"]': 8800}
