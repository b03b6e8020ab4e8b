"""Jobs on GPUs that differ from the usual ones: unified memory, compute modes, answers that make no sense."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import warm
from tests.e2e.world import World
from tests.fakes.machine import FakeGpu, FakeMachine
from tests.waiting import wait_for


@pytest.fixture
def machine(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    machine = FakeMachine("auto", tmp_path / "machine", monkeypatch)
    world.env |= {name: os.environ[name] for name in ("FAKE_GPUS", "PATH", "PYTHONPATH")}
    world.jobs_file.touch()
    return machine


def start(world: World, *options: str) -> None:
    """Starts a scheduler on the fake GPUs."""
    with open(world.output_file, "ab") as out:
        words = ["start", "--log-dir", "logs", "--state-file", world.state, "--mem-threshold", "1", *options]
        world.process = warm.Process(
            "tests.e2e.short_sampling", words, world.folder, world.env, out.fileno(), out.fileno()
        )
    wait_for(lambda: "scheduler up" in world.output(), "scheduler up")


def test_jobs_run_on_unified_memory_and_drain_ends(world: World, machine: FakeMachine) -> None:
    machine.plant(FakeGpu(unified=True))
    world.append("[vram=100M] exit 0", "exit 0", "[share=0.5] exit 0", "[exclusive] exit 0")
    start(world, "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 0, world.output()
    (gpu,) = world.status()["gpus"]
    assert {job["outcome"] for job in world.jobs().values()} == {"completed"}
    assert (gpu["unified_memory"], gpu["fault"]) == (True, None)
    first, kib, _ = Path("/proc/meminfo").read_text().split(maxsplit=2)
    assert (first, gpu["memory_total_mib"]) == ("MemTotal:", int(kib) // 1024)
    assert "unified memory: total and use are those of the machine" in world.run_ok("status")
    assert "unified memory: total and use are those of the machine" in world.run_ok("gpus")


def test_a_gpu_in_exclusive_mode_runs_one_job_at_a_time(world: World, machine: FakeMachine) -> None:
    for name in ("first", "second"):
        os.mkfifo(world.folder / name)
    machine.plant(FakeGpu("GPU-a", 1, mode=3), FakeGpu("GPU-b", 2, mode=2))
    start(world)
    world.append("[share=0.1] read line < first", "[share=0.1] read line < second")
    reason = "GPU 0: compute mode Exclusive_Process, one job at a time"
    world.wait_until(lambda jobs: 2 in jobs and reason in (jobs[2]["reason"] or ""), "job 2 waits")
    assert "GPU 1: in compute mode Prohibited: no process can use it" in world.jobs()[2]["reason"]
    (claim,) = json.loads(world.run_ok("gpus", "--json"))["gpus"][0]["claims"]
    assert (claim["mib"], world.status()["gpus"][0]["state"]) == (None, "busy")  # whatever the job declares
    text = world.run_ok("status", "--verbose")
    assert "compute mode Exclusive_Process: one job at a time" in text
    assert "in compute mode Prohibited" in text
    (world.folder / "first").write_text("\n")
    world.wait_until(lambda jobs: jobs[2]["state"] == "running", "job 2 runs")
    (world.folder / "second").write_text("\n")
    assert world.wait_finished(1, 2)[2]["outcome"] == "completed"
    assert world.end_scheduler() == 0


def test_a_gpu_with_an_unreadable_name_and_a_bad_one_do_not_end_any_command(
    world: World, machine: FakeMachine
) -> None:
    bad = {"GetUUID": 77, "GetMemoryInfo": 2, "GetMemoryInfo_v2": 25}
    machine.plant(
        FakeGpu("GPU-a", 1, name="\xf8\xff\x03RTX"), FakeGpu("GPU-b", 2, errors=bad), FakeGpu("GPU-c", 3)
    )
    start(world)
    world.append("[gpus=2] exit 0")
    assert world.wait_finished(1)[1]["gpus"] == [0, 2]
    assert world.end_scheduler() == 0
    for words in (("gpus",), ("doctor",)):
        done = world.cli(*words)
        assert "�?RTX" in done.stdout, done
        assert "its UUID cannot be read" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr


def test_every_command_says_that_nvidia_smi_is_used_in_place_of_nvml(
    world: World, machine: FakeMachine
) -> None:
    machine.plant(FakeGpu(), init=12)
    note = "NVML: NVML Shared Library Not Found; the GPUs are read with nvidia-smi"
    start(world)
    world.append("exit 0")
    assert world.wait_finished(1)[1]["outcome"] == "completed"
    machine.plant(FakeGpu())
    assert world.output().count(note) == 1
    machine.plant(FakeGpu(), init=12)
    assert world.end_scheduler() == 0
    assert note in world.cli("gpus").stderr
    assert note in world.cli("doctor").stdout
