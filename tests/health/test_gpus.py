"""Tests of the findings about a single GPU."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import LOST, GpuSample
from gpu_scheduler.health import doctor


@pytest.mark.parametrize(
    ("sample", "grade", "says"),
    [
        (GpuSample("U", 3, "gpu", 100, 9, 5.0), "ok", "gpu, 9 of 100 MiB in use, load 5 %"),
        (GpuSample("U", 3, "gpu", 100, 9, None), "warn", "gpu: load cannot be read"),
        (GpuSample("U", 3, "gpu"), "warn", "gpu: memory and load cannot be read"),
        (GpuSample("U", 3, "gpu", fault=LOST), "bad", "gpu: lost"),
        (GpuSample("U", 3, "gpu", 100, 9, 5.0, fault=LOST), "bad", "gpu: lost"),
    ],
)
def test_grades_the_sample_of_a_single_gpu(sample: GpuSample, grade: str, says: str) -> None:
    found = doctor._gpu(sample)
    assert (found.name, found.grade, found.message) == ("GPU 3", grade, says)
