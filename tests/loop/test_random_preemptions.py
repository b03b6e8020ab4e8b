"""Random queues on four GPUs, in which jobs preempt others while the scheduler dies at random steps.

The stress tests play 500 of them (P14).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.random_preemptions import Queue


@pytest.mark.parametrize("seed", range(12))
def test_jobs_start_on_the_gpus_that_are_freed_for_them(tmp_path: Path, seed: int) -> None:
    assert Queue(tmp_path, seed).play() == []
