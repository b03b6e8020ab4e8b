"""What NVML can answer besides plain values, over a fake `pynvml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.core.gpu import GpuProcess
from gpu_scheduler.probes import ProbeError
from tests.fakes.machine import Card, Machine

LOST, UNKNOWN, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 15, 999, 3, 4, 13


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine("nvml", tmp_path / "machine", monkeypatch)


def test_graphics_only_processes_are_told_apart(machine: Machine) -> None:
    machine.plant(Card(compute=((10, 400), (12, None)), graphics=((10, 400), (11, 90), (13, None))))
    assert machine.probe().sample()[0].processes == (
        GpuProcess(10, 400),
        GpuProcess(12, None),
        GpuProcess(11, 90, graphics_only=True),
        GpuProcess(13, None, graphics_only=True),
    )


def test_parts_of_one_process_are_added_up(machine: Machine) -> None:
    machine.plant(Card(compute=((10, 400), (10, 100), (11, 5), (11, None))))
    assert machine.probe().sample()[0].processes == (GpuProcess(10, 500), GpuProcess(11, None))


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_what_a_gpu_cannot_tell_is_unknown(machine: Machine, code: int) -> None:
    calls = ["GetMemoryInfo", "GetMemoryInfo_v2", "GetUtilizationRates", "GetComputeRunningProcesses"]
    machine.plant(Card(errors=dict.fromkeys(calls, code)))
    (gpu,) = machine.probe().sample()
    assert (gpu.total_mib, gpu.used_mib, gpu.load_percent, gpu.processes) == (None, None, None, None)
    assert gpu.fault is None


def test_an_old_driver_answers_the_first_version_of_the_memory_call(machine: Machine) -> None:
    machine.plant(Card(used=321, errors={"GetMemoryInfo_v2": FUNCTION_NOT_FOUND}))
    assert machine.probe().sample()[0].used_mib == 321


def test_a_fault_keeps_what_was_known_before_it(machine: Machine) -> None:
    machine.plant(Card(used=5, errors={"GetUtilizationRates": UNKNOWN}), Card("GPU-b", 2, used=6))
    first, second = machine.probe().sample()
    assert (first.used_mib, first.load_percent, first.processes) == (5, None, None)
    assert first.fault == "query failed: NVML Error with code 999"
    assert (second.used_mib, second.fault) == (6, None)


def test_a_gpu_lost_later_keeps_its_identity_and_place(machine: Machine) -> None:
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2), Card("GPU-c", 3))
    probe = machine.probe()
    probe.sample()
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2, lost=True), Card("GPU-c", 3))
    assert [(g.index, g.uuid, g.fault) for g in probe.sample()] == [
        (0, "GPU-a", None),
        (1, "GPU-b", "lost"),
        (2, "GPU-c", None),
    ]
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2), Card("GPU-c", 3))
    assert [g.fault for g in probe.sample()] == [None, None, None]


def test_a_gpu_no_longer_counted_stays_as_lost(machine: Machine) -> None:
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2), Card("GPU-c", 3))
    probe = machine.probe()
    probe.sample()
    machine.plant(count=UNKNOWN)
    with pytest.raises(ProbeError, match="code 999"):
        probe.sample()
    machine.plant(Card("GPU-a", 1), Card("GPU-c", 3))
    assert [(g.index, g.uuid, g.fault) for g in probe.sample()] == [
        (0, "GPU-a", None),
        (1, "GPU-b", "lost"),
        (2, "GPU-c", None),
    ]


def test_a_gpu_without_a_handle_from_the_first_look_leaves_no_ghost(machine: Machine) -> None:
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2, lost=True))
    probe = machine.probe()
    assert [(g.index, g.fault) for g in probe.sample()] == [(0, None), (1, "lost")]
    machine.plant(Card("GPU-a", 1), Card("GPU-b", 2))
    assert [(g.uuid, g.fault) for g in probe.sample()] == [("GPU-a", None), ("GPU-b", None)]


def test_a_driver_that_was_updated_under_us_asks_for_a_reboot(machine: Machine) -> None:
    machine.plant(init=18)
    with pytest.raises(ProbeError) as caught:
        machine.probe().sample()
    assert "reboot" in caught.value.remedy


def test_the_library_is_opened_again_after_it_failed(machine: Machine) -> None:
    machine.plant(init=9)
    probe = machine.probe()
    with pytest.raises(ProbeError, match="Driver Not Loaded"):
        probe.sample()
    machine.plant(Card())
    assert [g.uuid for g in probe.sample()] == ["GPU-a"]
