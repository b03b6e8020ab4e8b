"""Tests of CUDA_VISIBLE_DEVICES in the scheduler's own environment."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.gpus.probes.probe_process import restrict_to_visible

GPUS = tuple(
    GpuSample(uuid, index, "Fake", 24576, 0, 0.0)
    for index, uuid in enumerate(["GPU-aa11", "GPU-ab22", "GPU-cc33"])
)


@pytest.mark.parametrize(
    ("variable", "kept", "note"),
    [
        (None, [0, 1, 2], None),
        ("0,1,2", [0, 1, 2], None),
        ("1", [1], "allows only GPU 1 of 3"),
        (" 2 , 0 ", [0, 2], "allows only GPUs 0, 2 of 3"),
        ("GPU-cc", [2], "allows only GPU 2 of 3"),
        ("GPU-aa11,1", [0, 1], "allows only GPUs 0, 1 of 3"),
        ("1,1", [1], "allows only GPU 1 of 3"),
        ("", [], "hides every GPU"),
        ("-1", [], "hides every GPU"),
        ("NoDevFiles", [], "hides every GPU"),
        ("GPU-a", [], "'GPU-a' matches 2 GPUs; correct it"),
        ("0,7", [], "'7' matches no GPU; correct it"),
        ("0,", [], "'' matches no GPU; correct it"),
        ("zero", [], "'zero' matches no GPU; correct it"),
        ("\u0661", [], "matches no GPU; correct it"),
    ],
)
def test_cuda_visible_devices_restricts_the_managed_gpus(
    variable: str | None, kept: list[int], note: str | None
) -> None:
    gpus, said = restrict_to_visible(GPUS, variable)
    assert [gpu.index for gpu in gpus] == kept
    if note is None:
        assert said is None
    else:
        assert said is not None
        assert note in said
        assert said.startswith("CUDA_VISIBLE_DEVICES=")
