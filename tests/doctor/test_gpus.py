"""What each GPU says, graded."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.doctor import gpus


@pytest.mark.parametrize(
    ("sample", "grade", "says"),
    [
        (GpuSample("U", 3, "card", 100, 9, 5.0), "ok", "card, 9 of 100 MiB in use, load 5 %"),
        (GpuSample("U", 3, "card", 100, 9, None), "warn", "card: load cannot be read"),
        (GpuSample("U", 3, "card", None, None, None), "warn", "card: memory and load cannot be read"),
        (GpuSample("U", 3, "card", None, None, None, fault="lost"), "bad", "card: lost"),
        (GpuSample("U", 3, "card", 100, 9, 5.0, fault="lost"), "bad", "card: lost"),
    ],
)
def test_one_gpu(sample: GpuSample, grade: str, says: str) -> None:
    found = gpus._one(sample)
    assert (found.check, found.grade, found.says) == ("GPU 3", grade, says)
