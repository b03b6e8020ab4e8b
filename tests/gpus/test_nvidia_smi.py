"""Tests of the real GPUtil and of the fallback parser, on known outputs of `nvidia-smi`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuFault
from gpu_scheduler.gpus.probes import ProbeError
from gpu_scheduler.gpus.probes.gputil import GputilProbe, parse
from tests.fakes.machine import FakeGpu, FakeMachine
from tests.gpus.smi_table import CASES, NO_HANDLE, A, B, C, Case, Observed


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    (tmp_path / "meminfo").write_text("MemTotal:       125829120 kB\nMemAvailable:   118489088 kB\n")
    monkeypatch.setattr("gpu_scheduler.gpus.probes.MEMINFO", str(tmp_path / "meminfo"))
    return FakeMachine("gputil", tmp_path / "machine", monkeypatch)


def plant(machine: FakeMachine, case: Case) -> None:
    out = case.out if isinstance(case.out, bytes) else case.out.encode()
    (machine.folder / "smi.csv").write_bytes(out)
    (machine.folder / "smi.err").write_text(case.err)
    (machine.folder / "smi.code").write_text(str(case.code))


def observed(machine: FakeMachine) -> list[Observed]:
    return [
        (gpu.index, gpu.uuid, gpu.total_mib, gpu.used_mib, gpu.load_percent, _words(gpu.fault))
        for gpu in machine.probe().sample()
    ]


def _words(fault: GpuFault | None) -> str | None:
    return None if fault is None else str(fault)


def begun(found: list[Observed], expected: tuple[Observed, ...]) -> list[Observed]:
    """Returns the samples, with each fault's text cut to the length of the expected text."""
    faults = [None if e[5] is None else len(e[5]) for e in expected]
    cut = [f[5] and f[5][:length] for f, length in zip(found, faults, strict=True)]
    return [(*f[:5], fault) for f, fault in zip(found, cut, strict=True)]


@pytest.mark.parametrize("case", [case for case in CASES if not case.error], ids=lambda case: case.name)
def test_each_gpu_is_read_from_its_own_line(case: Case, machine: FakeMachine) -> None:
    plant(machine, case)
    found = observed(machine)
    assert [gpu[1] for gpu in found] == [gpu[1] for gpu in case.observed]
    assert begun(found, case.observed) == list(case.observed)


@pytest.mark.parametrize("case", [case for case in CASES if case.error], ids=lambda case: case.name)
def test_output_without_gpus_is_an_error_with_a_remedy(case: Case, machine: FakeMachine) -> None:
    plant(machine, case)
    with pytest.raises(ProbeError) as caught:
        machine.probe().sample()
    assert case.error in str(caught.value)
    assert case.remedy in caught.value.remedy
    assert str(caught.value).isprintable()


def test_nvidia_smi_runs_once_if_gputil_can_read_its_whole_output_and_rarely_for_the_modes(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2, used=5, load=7.0, mode=3))
    probe, calls = machine.probe(), machine.folder / "calls"
    calls.touch()
    assert [gpu.exclusive for gpu in probe.sample()] == [False, True]
    call, modes = calls.read_text().splitlines()
    assert "mig.mode" not in call
    assert "--query-gpu=uuid,compute_mode " in modes
    calls.write_text("")
    assert [gpu.exclusive for gpu in probe.sample()] == [False, True]
    assert calls.read_text().splitlines() == [call]
    monkeypatch.setattr("gpu_scheduler.gpus.probes.gputil.MODES_S", 0.0)
    machine.plant(FakeGpu("GPU-a", 1), FakeGpu("GPU-b", 2))
    assert [gpu.exclusive for gpu in machine.probe().sample()] == [False, False]


def test_driver_without_mig_is_queried_without_the_mig_field(machine: FakeMachine) -> None:
    (machine.folder / "old").touch()
    (machine.folder / "smi.csv").write_text(f"{A.replace(', 0,', ', [Not Supported],', 1)}\n{B}\n")
    assert [(gpu[1], gpu[4]) for gpu in observed(machine)] == [("GPU-a", None), ("GPU-b", 97.0)]


def test_parser_works_without_gputil(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "GPUtil", None)
    machine.plant(FakeGpu("GPU-a", 1, used=5))
    assert [(gpu[1], gpu[3]) for gpu in observed(machine)] == [("GPU-a", 5)]


def test_reports_an_nvidia_smi_that_cannot_be_run(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bin" / "nvidia-smi"
    bad.parent.mkdir()
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    monkeypatch.setenv("PATH", str(bad.parent))
    with pytest.raises(ProbeError, match="nvidia-smi cannot be run"):
        GputilProbe().sample()


@given(st.text(max_size=300))
def test_parses_any_text_without_an_exception(text: str) -> None:
    gpus, error = parse(text)
    assert len({gpu.index for gpu in gpus}) == len(gpus)
    assert error.isprintable()


@given(
    st.text(st.characters(exclude_characters="\n"), max_size=80)
    | st.sampled_from([f"{NO_HANDLE}0000:02:00.0: Unknown Error", "7, GPU-x", "1, GPU-x, x, y, z", "1,,,,,"]),
    st.integers(0, 3),
)
def test_malformed_line_does_not_hide_the_gpus_on_other_lines(odd: str, place: int) -> None:
    lines = [A, B, C]
    lines.insert(place, odd)
    found = {gpu.uuid: gpu for gpu in parse("\n".join(lines))[0]}
    values = [(found[uuid].used_mib, found[uuid].fault) for uuid in ("GPU-a", "GPU-b", "GPU-c")]
    assert values == [(11, None), (23117, None), (700, None)]
