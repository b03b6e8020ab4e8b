"""Tests of tools/hardware.py: its comparisons, a full run on a fake GPU, and a full run on real GPUs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_process import make_probe
from tests.fakes.machine import FakeGpu, FakeMachine
from tools.hardware import check_retry, compare_growth, main, probe_differences

GPU = GpuSample("GPU-a", 0, "NVIDIA A100", 81920, 1000, 5.0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (GPU, None),
        (replace(GPU, used_mib=1400, load_percent=None), None),
        (replace(GPU, total_mib=81000), None),
        (replace(GPU, uuid="GPU-b"), "different GPUs"),
        (replace(GPU, name="NVIDIA H100"), "'NVIDIA H100'"),
        (replace(GPU, total_mib=40960), "40960 MiB in total"),
        (replace(GPU, total_mib=None), "unknown"),
        (replace(GPU, used_mib=None), "unknown"),
        (replace(GPU, used_mib=9000), "9000 MiB in use"),
    ],
)
def test_reports_differences_between_the_samples_of_two_probes(other: GpuSample, message: str | None) -> None:
    found = probe_differences([GPU], [other])
    assert found == [] if message is None else message in "; ".join(found)


@pytest.mark.parametrize(
    ("before", "after", "message", "wrong"),
    [
        ((500, 2), (2548, 2050), "grown by 2048 and 2048 MiB; the rest, 498 MiB", False),
        ((500, 2), (2446, 2050), "grown by 1946 and 2048 MiB", False),
        ((500, 2), (2445, 2050), "grown by 1945 and 2048 MiB", True),
        ((500, 2), (2651, 2050), "grown by 2151 and 2048 MiB", True),
        ((None, 2), (None, 2050), "does not list the process", False),
    ],
)
def test_tolerates_small_differences_between_nvml_and_pytorch(
    before: tuple[int | None, int], after: tuple[int | None, int], message: str, wrong: bool
) -> None:
    report, faults = compare_growth(before, after)
    assert message in report
    assert bool(faults) is wrong


FAILED = {"attempt": 1, "outcome": "failed", "peaks": [None], "reason": "OOM retry 1 of 1", "min_vram": 2560}
DONE = {"attempt": 2, "outcome": "completed", "peaks": [2600], "min_vram": None}


@pytest.mark.parametrize(
    ("ends", "fault"),
    [
        ([FAILED, DONE], None),
        ([FAILED, {**DONE, "peaks": [None]}], None),
        ([FAILED, {**DONE, "peaks": [900]}], "a peak under 2048 MiB"),
        ([{**FAILED, "min_vram": None}, DONE], "the CUDA OOM was not recognised"),
        ([FAILED], "did not complete at its second attempt"),
        ([FAILED, {**DONE, "outcome": "failed"}], "did not complete at its second attempt"),
        ([], "did not complete at its second attempt"),
    ],
)
def test_checks_the_retry_of_a_job_that_ran_out_of_memory(
    ends: list[dict[str, Any]], fault: str | None
) -> None:
    found = check_retry(ends)[1]
    assert found == [] if fault is None else fault in found[0]


def test_full_run_on_a_fake_gpu_prints_all_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = FakeMachine("auto", tmp_path / "gpus", monkeypatch)
    machine.plant(FakeGpu("GPU-a"))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1] / 'fakes'}:{os.getcwd()}")
    code = main(1, torch=sys.executable)
    out, err = capsys.readouterr()
    assert code == 0, out + err
    assert "NVML and GPUtil agree." in out
    assert "one process: 2549 MiB by NVML, 2049 MiB by PyTorch; grown by 2048 and 2048 MiB" in out
    assert "attempt 1: failed, peaks [" in out
    # In a container, the scheduler knows a process's GPU only if the process has opened the device file.
    end = r"OOM retry 1 of 1 with 2\.5 GiB per GPU; attempt 2: completed, peaks \[(2549|None)\] MiB, done"
    assert re.search(end, out)


def _real() -> bool:
    try:
        return bool(make_probe("nvml").sample())
    except GpuStateError:
        return False


def test_reports_that_no_gpu_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    if _real():
        pytest.skip("this machine has a GPU")
    assert main(1) == GpuStateError.exit_code
    assert "no GPU can be read" in capsys.readouterr().err


@pytest.mark.gpu
def test_nvml_and_pytorch_agree_on_real_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    if not _real():
        pytest.skip("no GPU that NVML can read")
    assert main(3) == 0, capsys.readouterr().out
