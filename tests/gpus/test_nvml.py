"""Tests of the NVML probe with unusual answers from a fake `pynvml`."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import MIG_MODE, FaultKind, GpuFault, GpuProcess
from gpu_scheduler.gpus.probes import ProbeError
from tests.fakes.machine import FakeGpu, FakeMachine
from tests.fakes.pynvml import MESSAGES

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, TIMEOUT, NO_LIBRARY = 1, 3, 4, 9, 10, 12
FUNCTION_NOT_FOUND, LOST, RESET_REQUIRED, MISMATCH, NO_MEMORY, NO_DATA, UNKNOWN = 13, 15, 16, 18, 20, 21, 999

#: A call, the error that it raises for one GPU, and the GPU's fault (None = only a value is unknown).
ABOUT_ONE = [
    ("GetHandleByIndex", LOST, "lost"),
    ("GetHandleByIndex", UNKNOWN, "query failed: Unknown Error"),
    ("GetHandleByIndex", TIMEOUT, "query failed: Timeout"),
    ("GetUUID", LOST, "lost"),
    ("GetPciInfo", UNKNOWN, "query failed: Unknown Error"),
    ("GetMemoryInfo_v2", LOST, "lost"),
    ("GetMemoryInfo_v2", NOT_SUPPORTED, None),
    ("GetUtilizationRates", NOT_SUPPORTED, None),
    ("GetUtilizationRates", NO_DATA, None),
    ("GetUtilizationRates", RESET_REQUIRED, "query failed: GPU requires restart"),
    ("GetUtilizationRates", 77, None),
    ("GetPciInfo", 77, None),
    ("GetName", 77, None),
    ("GetUUID", 77, "query failed: its UUID cannot be read"),
    ("GetHandleByIndex", 77, "query failed: no handle (code 77)"),
    ("GetComputeMode", NOT_SUPPORTED, None),
    ("GetComputeMode", RESET_REQUIRED, "query failed: GPU requires restart"),
    *(("GetMemoryInfo_v2", code, None) for code in (2, 25, 26, 14)),
    *(("GetUtilizationRates", code, f"query failed: {MESSAGES[code]}") for code in (1, 9, 20)),
    ("GetComputeRunningProcesses", NO_PERMISSION, None),
    ("GetGraphicsRunningProcesses", TIMEOUT, "query failed: Timeout"),
    ("GetMigMode", FUNCTION_NOT_FOUND, None),
    ("GetMigMode", UNKNOWN, "query failed: Unknown Error"),
]

#: An error that concerns the whole library, the resulting message, and a part of the remedy.
ABOUT_ALL = [
    (NO_LIBRARY, "NVML Shared Library Not Found", "ldconfig -p | grep nvidia-ml"),
    (NOT_LOADED, "Driver Not Loaded", "install the NVIDIA driver"),
    (MISMATCH, "RM has detected an NVML/RM version mismatch.", "reboot"),
    (NO_PERMISSION, "Insufficient Permissions", "ls -l /dev/nvidia*"),
    (UNINITIALIZED, "Uninitialized", "install the NVIDIA driver"),
    (UNKNOWN, "Unknown Error", "install the NVIDIA driver"),
    (NO_MEMORY, "Insufficient Memory", "free system memory"),
]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine("nvml", tmp_path / "machine", monkeypatch)


def test_graphics_only_processes_are_marked(machine: FakeMachine) -> None:
    machine.plant(FakeGpu(compute=((10, 400), (12, None)), graphics=((10, 400), (11, 90), (13, None))))
    assert machine.probe().sample()[0].processes == (
        GpuProcess(10, 400, load_percent=0.0),
        GpuProcess(12, None, load_percent=0.0),
        GpuProcess(11, 90, graphics_only=True, load_percent=0.0),
        GpuProcess(13, None, graphics_only=True, load_percent=0.0),
    )


def test_adds_up_several_entries_for_one_process(machine: FakeMachine) -> None:
    machine.plant(FakeGpu(compute=((10, 400), (10, 100), (11, 5), (11, None))))
    (gpu,) = machine.probe().sample()
    assert [(one.pid, one.used_mib) for one in gpu.processes or ()] == [(10, 500), (11, None)]


@pytest.mark.parametrize(
    ("measured", "loads"),
    [
        ((), (0.0, 0.0, 0.0)),
        (((10, 90, 0.5),), (90.0, 0.0, 0.0)),
        (((10, 90, 0.5), (11, 7, 1.9), (12, 30, 0.1)), (90.0, 7.0, 30.0)),
        # Measurements older than two seconds do not count.
        (((10, 90, 2.5),), (0.0, 0.0, 0.0)),
        # The newest measurement of a pid counts, wherever it is listed. Those of equal age are added up.
        (((10, 90, 1.0), (10, 20, 0.5)), (20.0, 0.0, 0.0)),
        (((10, 20, 0.5), (10, 90, 1.0)), (20.0, 0.0, 0.0)),
        (((10, 20, 0.5), (10, 30, 0.5)), (50.0, 0.0, 0.0)),
        (((10, 80, 0.5), (10, 70, 0.5)), (100.0, 0.0, 0.0)),
        # An impossible value is ignored.
        (((10, 4_000_000_000, 0.5), (0, 0, 0.5)), (0.0, 0.0, 0.0)),
        # A load with an unlisted pid: the pid is from another namespace, or its process has just ended.
        (((645400, 13, 0.5),), None),
        (((645400, 13, 0.5), (10, 90, 0.5)), None),
        (((645400, 0, 0.5), (10, 90, 0.5)), (90.0, 0.0, 0.0)),
    ],
)
def test_reads_the_load_of_each_process(
    machine: FakeMachine, measured: tuple[tuple[int, int, float], ...], loads: tuple[float, ...] | None
) -> None:
    machine.plant(FakeGpu(compute=((10, 400), (12, 5)), graphics=((11, 90),), measured=measured))
    (gpu,) = machine.probe().sample()
    found = {one.pid: one.load_percent for one in gpu.processes or ()}
    assert found == dict(zip((10, 11, 12), loads or (None,) * 3, strict=True))
    assert gpu.fault is None


@pytest.mark.parametrize(
    "code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, TIMEOUT, UNKNOWN]
)
def test_process_loads_are_unknown_if_the_driver_does_not_report_them(
    machine: FakeMachine, code: int
) -> None:
    machine.plant(FakeGpu(load=55.0, compute=((10, 400),), errors={"GetProcessUtilization": code}))
    (gpu,) = machine.probe().sample()
    assert (gpu.processes, gpu.load_percent, gpu.fault) == ((GpuProcess(10, 400),), 55.0, None)


def test_process_loads_are_unknown_if_the_library_lacks_the_call(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetProcessUtilization")
    machine.plant(FakeGpu(compute=((10, 400),), measured=((10, 90, 0.5),)))
    assert machine.probe().sample()[0].processes == (GpuProcess(10, 400),)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_value_that_the_driver_does_not_support_is_unknown(machine: FakeMachine, code: int) -> None:
    calls = ["GetMemoryInfo", "GetMemoryInfo_v2", "GetUtilizationRates", "GetComputeRunningProcesses"]
    machine.plant(FakeGpu(errors=dict.fromkeys(calls, code)))
    (gpu,) = machine.probe().sample()
    assert (gpu.load_percent, gpu.processes, gpu.fault) == (None, None, None)
    assert gpu.unified == (code == NOT_SUPPORTED)
    assert gpu.unified or (gpu.total_mib, gpu.used_mib) == (None, None)


def test_old_driver_uses_version_1_of_the_memory_call(machine: FakeMachine) -> None:
    machine.plant(FakeGpu(used=321, errors={"GetMemoryInfo_v2": FUNCTION_NOT_FOUND}))
    assert machine.probe().sample()[0].used_mib == 321


def test_a_fault_leaves_only_its_own_field_unknown(machine: FakeMachine) -> None:
    machine.plant(FakeGpu(used=5, errors={"GetUtilizationRates": UNKNOWN}), FakeGpu("GPU-b", 2, used=6))
    first, second = machine.probe().sample()
    assert (first.used_mib, first.load_percent, first.processes) == (5, None, ())
    assert first.fault == GpuFault(FaultKind.QUERY_FAILED, "Unknown Error")
    assert (second.used_mib, second.fault) == (6, None)


@pytest.mark.parametrize(("call", "code", "fault"), ABOUT_ONE)
def test_error_of_one_gpu_does_not_affect_the_other_gpus(
    call: str, code: int, fault: str | None, machine: FakeMachine
) -> None:
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2, errors={call: code}), FakeGpu("GPU-c", 3, used=5))
    gpus = machine.probe().sample()
    assert [(g.index, g.fault and str(g.fault)) for g in gpus] == [(0, None), (1, fault), (2, None)]
    assert (gpus[0].used_mib, gpus[2].used_mib) == (0, 5)


@pytest.mark.parametrize(("code", "message", "remedy"), ABOUT_ALL)
@pytest.mark.parametrize("at", ["init", "count"])
def test_library_error_fails_the_sample(
    at: str, code: int, message: str, remedy: str, machine: FakeMachine
) -> None:
    machine.plant(FakeGpu(), **{at: code})
    with pytest.raises(ProbeError) as caught:
        machine.probe().sample()
    assert str(caught.value) == f"NVML: {message}"
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("call", ["GetHandleByIndex", "GetUtilizationRates"])
@pytest.mark.parametrize("code", [UNINITIALIZED, NOT_LOADED, MISMATCH, NO_MEMORY])
def test_library_error_of_every_gpu_fails_the_whole_sample_but_not_that_of_one_gpu(
    call: str, code: int, machine: FakeMachine
) -> None:
    bad = {call: code}
    machine.plant(FakeGpu("GPU-a", 1, errors=bad), FakeGpu("GPU-b", 2, errors=bad))
    with pytest.raises(ProbeError, match=f"^NVML: {re.escape(MESSAGES[code])}"):
        machine.probe().sample()
    machine.plant(FakeGpu("GPU-a", 1, used=7), FakeGpu("GPU-b", 2, errors=bad))
    first, second = machine.probe().sample()
    assert (first.used_mib, first.fault) == (7, None)
    assert str(second.fault) == f"query failed: {MESSAGES[code]}"


def test_skips_a_gpu_that_this_user_may_not_access(machine: FakeMachine) -> None:
    denied = {"GetHandleByIndex": NO_PERMISSION}
    machine.plant(FakeGpu("GPU-a", 1, errors=denied), FakeGpu("GPU-b", 2))
    assert [(g.index, g.uuid) for g in machine.probe().sample()] == [(0, "GPU-b")]
    machine.plant(FakeGpu("GPU-a", 1, errors=denied))
    with pytest.raises(ProbeError, match=r"this user may not use any GPU \(1 found\)") as caught:
        machine.probe().sample()
    assert "/dev/nvidia*" in caught.value.remedy


def test_gpu_without_a_handle_is_identified_by_its_index(machine: FakeMachine) -> None:
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2, lost=True))
    probe = machine.probe()
    assert [(g.uuid, g.fault) for g in probe.sample()] == [
        ("GPU-a", None),
        ("unknown-1", GpuFault(FaultKind.LOST)),
    ]
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2))
    assert [(g.uuid, g.fault) for g in probe.sample()] == [("GPU-a", None), ("GPU-b", None)]


def test_library_is_reopened_to_find_a_gpu_that_came_back(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[None] = []
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", lambda: opened.append(None))
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2, lost=True))
    probe = machine.probe()
    probe.sample()
    probe.sample()
    assert len(opened) == 1
    monkeypatch.setattr("gpu_scheduler.gpus.probes.nvml.REOPEN_S", 0.0)
    probe.sample()
    assert len(opened) == 2
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2))
    probe.sample()
    probe.sample()
    assert len(opened) == 3


def test_mig_mode_is_a_fault_only_once_it_is_active(machine: FakeMachine) -> None:
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2))
    file = machine.folder / "gpus.json"
    world = json.loads(file.read_text())
    world["cards"][0]["mig"], world["cards"][1]["mig"] = [0, 1], [1, 0]
    file.write_text(json.dumps(world))
    first, second = machine.probe().sample()
    assert (first.fault, second.fault) == (None, MIG_MODE)


def test_mig_mode_alone_does_not_reopen_the_library(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[None] = []
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", lambda: opened.append(None))
    monkeypatch.setattr("gpu_scheduler.gpus.probes.nvml.REOPEN_S", 0.0)
    machine.plant(FakeGpu("GPU-a", 1, mig=1), FakeGpu("GPU-b", 2))
    probe = machine.probe()
    for _ in range(3):
        assert probe.sample()[0].fault is not None
    assert len(opened) == 1


def test_fake_pynvml_has_the_same_messages_as_the_real_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    real = importlib.import_module("pynvml")
    assert {code: str(real.NVMLError(code)) for code in MESSAGES} == MESSAGES


def test_name_that_is_not_utf_8_is_a_name(machine: FakeMachine) -> None:
    machine.plant(FakeGpu("GPU-a", 1, name="\xf8\xff RTX\x1b[2J"), FakeGpu("GPU-b", 2))
    first, second = machine.probe().sample()
    assert (first.name, first.used_mib, first.fault) == ("\ufffd\ufffd RTX?[2J", 0, None)
    assert (second.name, second.fault) == ("Fake", None)


def test_gpu_with_an_unreadable_or_repeated_uuid_has_a_fault(machine: FakeMachine) -> None:
    machine.plant(*(FakeGpu(uuid, bus) for bus, uuid in enumerate(("GPU-a", "GPU-a", "../x", "SIM-0", ""))))
    first, *others = machine.probe().sample()
    assert (first.uuid, first.fault) == ("GPU-a", None)
    assert [gpu.uuid for gpu in others] == [f"unknown-{index}" for index in range(1, 5)]
    assert {str(gpu.fault) for gpu in others} == {"query failed: its UUID cannot be read"}


def test_a_gpu_that_does_not_respond_is_queried_only_once(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMigMode", calls.append)
    machine.plant(FakeGpu("GPU-a", 1, errors={"GetMemoryInfo_v2": TIMEOUT}), FakeGpu("GPU-b", 2))
    first, second = machine.probe().sample()
    assert (str(first.fault), second.fault, calls) == ("query failed: Timeout", None, [1])


def test_library_is_reopened_after_a_failure(machine: FakeMachine) -> None:
    machine.plant(init=9)
    probe = machine.probe()
    with pytest.raises(ProbeError, match="Driver Not Loaded"):
        probe.sample()
    machine.plant(FakeGpu())
    assert [g.uuid for g in probe.sample()] == ["GPU-a"]
