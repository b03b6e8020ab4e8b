"""Random queues with reservations by queue order: restarted and killed schedulers decide the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.random_queue_orders import OrderedQueue


@pytest.mark.parametrize("seed", range(2))
def test_a_scheduler_that_is_restarted_before_each_round_decides_the_same(tmp_path: Path, seed: int) -> None:
    going_on = OrderedQueue(tmp_path / "on", seed).play()
    restarted = OrderedQueue(tmp_path / "again", seed, restarts=True).play()
    assert going_on.faults == []
    assert restarted.history == going_on.history


@pytest.mark.parametrize("seed", range(100, 103))
def test_no_job_is_lost_and_no_gpu_given_twice_if_schedulers_die(tmp_path: Path, seed: int) -> None:
    queue = OrderedQueue(tmp_path, seed, dies=True).play()
    assert queue.faults == []
    assert queue.counts["scheduler killed"]
