"""A real Slurm for each module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm_lab import SlurmLab, missing

#: With this variable, a machine on which no Slurm can run fails the tests instead of skipping them.
NEED_SLURM = "GPU_SCHEDULER_NEED_SLURM"


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmLab]:
    """Provides a Slurm of three nodes with two GPUs each, which belongs to this module alone."""
    reason = missing()
    if reason is not None:
        if os.environ.get(NEED_SLURM):
            pytest.fail(f"{NEED_SLURM} is set, but {reason}")
        pytest.skip(reason)
    # The tests say which nodes fail. A controller that was stopped for longer than the timeout could take its
    # nodes for dead before it reads their answers.
    lab = SlurmLab(node_timeout_s=300)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
