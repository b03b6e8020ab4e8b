"""Tests of simulated GPUs, of their usage files, and of the simulated job that writes these files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import simjob
from gpu_scheduler.core.model.gpu import LOST
from gpu_scheduler.gpus.probes.simulated import SimulatedProbe, parse_simulate
from gpu_scheduler.system import simulated_usage
from tests.gpus.wait import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "totals"),
    [
        ("4", (24576,) * 4),
        ("1", (24576,)),
        ("4:80G", (81920,) * 4),
        ("2:24G,2:80G", (24576, 24576, 81920, 81920)),
        ("1:512M, 1:40GiB", (512, 40960)),
        ("1,1:80G", (24576, 81920)),
    ],
)
def test_parses_the_simulate_option(text: str, totals: tuple[int, ...]) -> None:
    assert parse_simulate(text) == totals


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "four", "4:", "4:80", "4:0G", "129", "1,,1", "4:80T", "٤", "1.5"]
)
def test_rejects_an_invalid_simulate_option_and_shows_a_valid_one(text: str) -> None:
    with pytest.raises(ValueError, match='such as "4"'):
        parse_simulate(text)


@pytest.mark.parametrize("text", ["129", "1000", "999999999", "128,1"])
def test_names_the_largest_number_of_simulated_gpus(text: str) -> None:
    with pytest.raises(ValueError, match="give 1 to 128 GPUs"):
        parse_simulate(text)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 200)), min_size=1, max_size=8))
def test_parses_any_valid_simulate_option(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}:{size}G" for count, size in parts)
    assert parse_simulate(text) == tuple(size * 1024 for count, size in parts for _ in range(count))


def test_process_loads_are_reported_unless_a_file_withholds_them(tmp_path: Path) -> None:
    plant(tmp_path, os.getpid(), {"0": 5, "1": 5}, 70)
    plant(tmp_path, os.getppid(), {"0": 5}, 20)
    loads = {os.getpid(): 70.0, os.getppid(): 20.0}

    def reported() -> list[dict[int, float | None]]:
        gpus = SimulatedProbe([24576, 24576], str(tmp_path)).sample()
        return [{process.pid: process.load_percent for process in gpu.processes or ()} for gpu in gpus]

    assert reported() == [loads, {os.getpid(): 70.0}]
    simulated_usage.write_json(str(tmp_path / "withheld.json"), {"0": "process loads"})
    assert reported() == [dict.fromkeys(loads), {os.getpid(): 70.0}]


def test_memory_use_is_added_up_but_never_exceeds_the_memory_of_the_gpu(tmp_path: Path) -> None:
    plant(tmp_path, os.getpid(), {"0": 20000, "1": 100}, 70)
    plant(tmp_path, os.getppid(), {"0": 20000}, 70)
    first, second = SimulatedProbe([24576, 24576], str(tmp_path)).sample()
    assert (first.used_mib, first.load_percent) == (24576, 100.0)
    assert (second.used_mib, second.load_percent) == (100, 70.0)
    assert {process.pid for process in first.processes or ()} == {os.getpid(), os.getppid()}


def test_usage_of_dead_processes_is_ignored_and_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        mine = plant(tmp_path, child.pid, {"0": 500}, 10)
        other_life = tmp_path / f"{os.getpid()}-1.json"
        other_life.write_text(json.dumps({"pid": os.getpid(), "gpus": {"0": 700}, "load": 1}))
        probe = SimulatedProbe([24576], str(tmp_path))
        assert probe.sample()[0].used_mib == 500
        assert not other_life.exists()
        child.kill()
        until(lambda: simulated_usage.start_ticks(child.pid) is None)
        # The process stays a zombie until Popen collects it, but its memory is already free.
        assert probe.sample()[0].used_mib == 0
        assert not mine.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"gpus": 3}', '{"gpus": {"x": 1}}', '{"gpus": {"0": null}}']
)
def test_malformed_usage_file_is_ignored(tmp_path: Path, text: str) -> None:
    file = plant(tmp_path, os.getpid(), {}, 0)
    file.write_text(text)
    assert SimulatedProbe([24576], str(tmp_path)).sample()[0].used_mib == 0


def test_other_files_in_the_usage_folder_are_kept(tmp_path: Path) -> None:
    for name in ("notes.txt", "1-2.json.bak", "x-1.json", ".lock"):
        (tmp_path / name).write_text("{}")
    SimulatedProbe([24576], str(tmp_path)).sample()
    assert {p.name for p in tmp_path.iterdir()} == {
        "notes.txt",
        "1-2.json.bak",
        "x-1.json",
        ".lock",
        "cards.json",
    }


def test_no_memory_is_used_if_the_usage_folder_is_missing(tmp_path: Path) -> None:
    assert SimulatedProbe([24576], None).sample()[0].processes == ()
    assert SimulatedProbe([24576], str(tmp_path / "none")).sample()[0].used_mib == 0


def test_two_probes_may_write_the_totals_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"from {SimulatedProbe.__module__} import *; SimulatedProbe([24576], {str(tmp_path)!r}).sample()"
    replace = os.replace

    def replace_after_the_other_probe(part: str, path: str) -> None:
        subprocess.run([sys.executable, "-c", other], check=True)
        replace(part, path)

    monkeypatch.setattr(os, "replace", replace_after_the_other_probe)
    assert SimulatedProbe([24576], str(tmp_path)).sample()[0].used_mib == 0
    assert {path.name for path in tmp_path.iterdir()} == {"cards.json"}


def test_faults_file_sets_the_fault_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text('{"1": "lost"}')
    first, second = SimulatedProbe([24576, 24576], str(tmp_path)).sample()
    assert (first.fault, second.fault, second.used_mib, second.processes) == (None, LOST, None, None)


def test_simjob_uses_memory_while_it_runs_and_none_afterwards(tmp_path: Path) -> None:
    probe = SimulatedProbe([24576, 24576], str(tmp_path))
    with start_simjob(tmp_path, "0,SIM-1", "--vram", "8000", "--ramp", "0.2", "--hold", "30") as job:
        until(lambda: [g.used_mib for g in probe.sample()] == [8000, 8000])
        assert [p.pid for p in probe.sample()[0].processes or ()] == [job.pid]
        assert probe.sample()[0].load_percent == 90.0
        job.send_signal(signal.SIGINT)
        assert job.wait(60) == 130
    assert [g.used_mib for g in probe.sample()] == [0, 0]
    assert list(tmp_path.glob("*-*.json")) == []


def test_killed_simjob_uses_no_memory(tmp_path: Path) -> None:
    probe = SimulatedProbe([24576], str(tmp_path))
    with start_simjob(tmp_path, "0", "--vram", "8000", "--hold", "30") as job:
        until(lambda: probe.sample()[0].used_mib == 8000)
        job.kill()
        job.wait(60)
        assert probe.sample()[0].used_mib == 0


def test_simjob_runs_out_of_memory_on_a_full_gpu(tmp_path: Path) -> None:
    SimulatedProbe([24576], str(tmp_path)).sample()
    plant(tmp_path, os.getpid(), {"0": 20000}, 0)
    with start_simjob(tmp_path, "0", "--vram", "4000", "--hold", "0") as job:
        assert job.wait(60) == 0
    with start_simjob(tmp_path, "0", "--vram", "6000", "--hold", "0") as job:
        _, errors = job.communicate(timeout=60)
        assert (job.returncode, "CUDA out of memory" in errors) == (1, True)
    assert len(list(tmp_path.glob("*-*.json"))) == 1


def test_simjob_fails_with_the_requested_exit_code_or_an_oom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(simulated_usage.FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert simjob.main(["--hold", "0", "--exit", "3"]) == 3
    assert simjob.main(["--hold", "0", "--oom"]) == 1


@pytest.mark.parametrize("variable", ["", "-1", "GPU-1234", "0,,1"])
def test_simjob_rejects_invalid_gpu_ids(variable: str) -> None:
    with pytest.raises(SystemExit, match="is not a list of simulated GPUs"):
        simjob.visible_gpus(variable)


def plant(folder: Path, pid: int, gpus: dict[str, int], load: float) -> Path:
    file = folder / f"{pid}-{simulated_usage.start_ticks(pid)}.json"
    file.write_text(json.dumps({"pid": pid, "gpus": gpus, "load": load}))
    return file


def start_simjob(folder: Path, gpus: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a simulated job with the standard library alone, since jobs run under any Python."""
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "gpu_scheduler.simjob", *arguments],
        cwd=ROOT,
        env={**os.environ, simulated_usage.FOLDER_VARIABLE: str(folder), "CUDA_VISIBLE_DEVICES": gpus},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
