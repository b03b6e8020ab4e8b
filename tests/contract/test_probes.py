"""Tests that every probe passes the same cases, in this process and in a probe process.

The GPUtil probe runs the real GPUtil with a fake `nvidia-smi`, which is first on PATH. The NVML probe uses a
fake `pynvml`, which is in sys.modules of this process and on the PYTHONPATH of the probe process.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import LOST, MIG_MODE, PROHIBITED, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes import ProbeError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient, take_sample
from tests.fakes.machine import FakeGpu, FakeMachine

ALL: tuple[ProbeKind, ...] = ("simulated", "nvml", "gputil")
REAL: tuple[ProbeKind, ...] = ("nvml", "gputil")

ME = os.getpid()


@pytest.fixture(params=ALL)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(request.param, tmp_path / "machine", monkeypatch)


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(request.param, tmp_path / "machine", monkeypatch)


@pytest.fixture(params=["here", "asked"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sample(machine: FakeMachine, where: str) -> tuple[GpuSample, ...]:
    if where == "here":
        return machine.probe().sample()
    with ProbeClient(machine.kind, machine.simulate, str(machine.folder)) as probe:
        return probe.sample().gpus


def test_sample_has_every_gpu_with_its_values(machine: FakeMachine, where: str) -> None:
    machine.plant(FakeGpu("GPU-a", 1, 24576, 0, 0.0), FakeGpu("GPU-b", 2, 81920, 3000, 40.0, ((ME, 3000),)))
    gpus = sample(machine, where)
    assert [(g.index, g.total_mib, g.used_mib, g.load_percent, g.fault) for g in gpus] == [
        (0, 24576, 0, 0.0, None),
        (1, 81920, 3000, 40.0, None),
    ]
    assert len({g.uuid for g in gpus}) == 2
    assert all(g.name for g in gpus)


def test_nvml_lists_processes_and_gputil_reports_them_as_unknown(machine: FakeMachine, where: str) -> None:
    machine.plant(FakeGpu(), FakeGpu("GPU-b", 2, 24576, 3000, 40.0, ((ME, 3000),), measured=((ME, 40, 0.1),)))
    gpus = sample(machine, where)
    if machine.kind == "gputil":
        assert [g.processes for g in gpus] == [None, None]
    else:
        assert [g.processes for g in gpus] == [(), (GpuProcess(ME, 3000, load_percent=40.0),)]


def test_each_sample_reads_the_values_again(machine: FakeMachine) -> None:
    machine.plant(FakeGpu())
    probe = machine.probe()
    before = probe.sample()
    machine.plant(FakeGpu(used=500, compute=((ME, 500),)))
    assert (before[0].used_mib, probe.sample()[0].used_mib) == (0, 500)


def test_gpus_are_numbered_in_pci_order_and_keep_their_uuids(real: FakeMachine, where: str) -> None:
    real.plant(FakeGpu("GPU-late", 9), FakeGpu("GPU-early", 3), FakeGpu("GPU-middle", 5))
    assert [(g.index, g.uuid) for g in sample(real, where)] == [
        (0, "GPU-early"),
        (1, "GPU-middle"),
        (2, "GPU-late"),
    ]


def test_unknown_load_is_not_a_fault(real: FakeMachine, where: str) -> None:
    real.plant(FakeGpu(load=None))
    (gpu,) = sample(real, where)
    assert (gpu.load_percent, gpu.fault, gpu.total_mib) == (None, None, 24576)


def test_lost_gpu_does_not_affect_the_other_gpus(machine: FakeMachine, where: str) -> None:
    machine.plant(
        FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2, lost=True), FakeGpu("GPU-c", 3, used=7, compute=((ME, 7),))
    )
    gpus = sample(machine, where)
    assert [(g.index, g.used_mib, g.fault) for g in gpus] == [(0, 0, None), (1, None, LOST), (2, 7, None)]


def test_gpu_in_mig_mode_has_a_fault_but_its_memory_is_known(real: FakeMachine, where: str) -> None:
    real.plant(FakeGpu("GPU-a", 1, used=7, load=None, mig=1), FakeGpu("GPU-b", 2, mig=0))
    gpus = sample(real, where)
    assert [(g.used_mib, g.load_percent, g.fault) for g in gpus] == [
        (7, None, MIG_MODE),
        (0, 0.0, None),
    ]


def test_impossible_value_is_treated_as_unknown(real: FakeMachine) -> None:
    real.plant(FakeGpu("GPU-a", 1, total=100, used=200, load=250.0), FakeGpu("GPU-b", 2, total=0))
    gpus = sample(real, "here")
    assert [(g.total_mib, g.used_mib, g.load_percent, g.fault) for g in gpus] == [
        (100, None, None, None),
        (None, 0, 0.0, None),
    ]


def test_probe_ignores_cuda_visible_devices(
    real: FakeMachine, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    real.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2))
    assert [g.uuid for g in sample(real, where)] == ["GPU-a", "GPU-b"]


def test_nvml_error_without_a_driver_names_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    machine = FakeMachine("nvml", tmp_path / "machine", monkeypatch)
    machine.plant(init=9)
    with pytest.raises(GpuStateError) as caught:
        sample(machine, where)
    remedy = getattr(caught.value, "remedy", str(caught.value))
    assert "Driver Not Loaded" in str(caught.value)
    assert "--simulate 4" in remedy


def test_gputil_error_without_nvidia_smi_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        ProbeClient("gputil") as probe,
        pytest.raises(GpuStateError, match=r"nvidia-smi is not on PATH\n.*--simul"),
    ):
        probe.sample()


def test_compute_mode_is_read(real: FakeMachine, where: str) -> None:
    real.plant(*(FakeGpu(f"GPU-{mode}", 1 + mode, mode=mode) for mode in range(4)))
    gpus = sample(real, where)
    assert [(gpu.exclusive, gpu.fault) for gpu in gpus] == [
        (False, None),
        (True, None),
        (False, PROHIBITED),
        (True, None),
    ]


def test_memory_of_a_gpu_without_memory_of_its_own_is_that_of_the_machine(
    real: FakeMachine, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real.plant(FakeGpu("GPU-a", 1, unified=True), FakeGpu("GPU-b", 2, used=5))
    shared, own = sample(real, where)
    first, kib, _ = Path("/proc/meminfo").read_text().split(maxsplit=2)
    assert (first, shared.total_mib, shared.unified) == ("MemTotal:", int(kib) // 1024, True)
    assert 0 < (shared.used_mib or 0) < int(kib) // 1024
    assert (own.total_mib, own.used_mib, own.unified, shared.fault) == (24576, 5, False, None)
    for text in ("", "MemTotal: x kB\n", "MemTotal:  2048 kB\n"):
        (tmp_path / "meminfo").write_text(text)
        monkeypatch.setattr("gpu_scheduler.gpus.probes.MEMINFO", str(tmp_path / "meminfo"))
        shared, own = sample(real, "here")
        assert (shared.total_mib, shared.used_mib, shared.unified, own.used_mib) == (None, None, True, 5)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
@pytest.mark.parametrize(
    "answer", [OSError("no library"), TypeError("odd"), RecursionError(), MemoryError("full"), None, "x"]
)
def test_auto_falls_back_if_nvml_fails_for_whatever_reason_and_says_so(
    call: str, answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine("auto", tmp_path / "machine", monkeypatch)
    machine.plant(FakeGpu())
    probe = machine.probe()

    def broken() -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(f"tests.fakes.pynvml.{call}", broken)
        taken = take_sample(probe)
        assert isinstance(taken, Snapshot)
        assert [gpu.uuid for gpu in taken.gpus] == ["GPU-a"]
        fails = call == "nvmlDeviceGetCount" or isinstance(answer, Exception)
        assert ("; the GPUs are read with nvidia-smi instead of NVML, so" in taken.note) == fails
    # NVML is used again as soon as it works.
    taken = take_sample(probe)
    assert isinstance(taken, Snapshot)
    assert (taken.gpus[0].processes, taken.note) == ((), "")


def test_auto_asks_nvidia_smi_if_nvml_finds_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine("auto", tmp_path / "machine", monkeypatch)
    machine.plant(FakeGpu())
    monkeypatch.setattr("tests.fakes.pynvml.nvmlDeviceGetCount", lambda: 0)
    assert [gpu.uuid for gpu in machine.probe().sample()] == ["GPU-a"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.probe().sample() == ()


def test_auto_uses_nvml_and_falls_back_to_gputil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine("auto", tmp_path / "machine", monkeypatch)
    machine.plant(FakeGpu(compute=((ME, 1),)))
    probe = machine.probe()
    assert probe.sample()[0].processes == (GpuProcess(ME, 1, load_percent=0.0),)
    machine.plant(FakeGpu(), init=9)
    fallback = machine.probe()
    assert fallback.sample()[0].processes is None
    (machine.folder / "smi.csv").write_text("NVIDIA-SMI has failed because it couldn't communicate with …\n")
    with pytest.raises(ProbeError, match=r"Driver Not Loaded; nvidia-smi: NVIDIA-SMI has failed") as caught:
        machine.probe().sample()
    assert "modprobe" in caught.value.remedy


def test_machine_without_gpus_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine("nvml", tmp_path / "machine", monkeypatch)
    machine.plant()
    assert machine.probe().sample() == ()
    with ProbeClient("nvml") as probe, pytest.raises(GpuStateError, match=r"no GPU found\n.*--simulate 4"):
        probe.sample()
