"""NVML against GPUtil: the rule by which they agree, and the real cards where there are any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.probes import make_probe
from tools.hardware import differences, main

CARD = GpuSample("GPU-a", 0, "NVIDIA A100", 81920, 1000, 5.0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (CARD, None),
        (replace(CARD, used_mib=1400, load_percent=None), None),
        (replace(CARD, total_mib=81000), None),
        (replace(CARD, uuid="GPU-b"), "other cards"),
        (replace(CARD, name="NVIDIA H100"), "'NVIDIA H100'"),
        (replace(CARD, total_mib=40960), "40960 MiB in all"),
        (replace(CARD, total_mib=None), "not known"),
        (replace(CARD, used_mib=None), "not known"),
        (replace(CARD, used_mib=9000), "9000 MiB in use"),
    ],
)
def test_what_counts_as_a_difference(other: GpuSample, said: str | None) -> None:
    found = differences([CARD], [other])
    assert found == [] if said is None else said in "; ".join(found)


def _real() -> bool:
    try:
        return bool(make_probe("nvml").sample())
    except GpuStateError:
        return False


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if _real():
        pytest.skip("this machine has a GPU")
    assert main(1) == GpuStateError.exit_code
    assert "no GPU can be read" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_real_cards_the_two_agree(capsys: pytest.CaptureFixture[str]) -> None:
    if not _real():
        pytest.skip("no GPU that NVML can read")
    assert main(3) == 0, capsys.readouterr().out
