"""Tests that each attempt gets a port of its own for its processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_scheduler.attempts import launch
from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.core.command.build import ports_for
from gpu_scheduler.runner.folder import read_spec
from tests.loop.rig import Rig


def port_of(rig: Rig, job: int) -> int:
    """Runs rounds until the job runs; returns the port in its environment."""
    rig.runner_pid(job)
    env = read_spec(rig.attempt_folder(job))["env"]
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"]
    return int(env["MASTER_PORT"])


def test_open_attempts_get_different_ports_also_from_a_later_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_ephemeral = int(launch._PORT_RANGE.read_text().split()[0])
    patch = monkeypatch.setattr
    patch(launch, "ports_for", lambda token, ephemeral: iter((20101, 20102, 20103)))
    rig = Rig(tmp_path, gpus=3)
    jobs = [rig.add_job("exec sleep 300") for _ in range(2)]
    ports = [port_of(rig, job) for job in jobs]
    later = Rig(tmp_path, gpus=3)
    ports.append(port_of(later, later.add_job("exec sleep 300")))
    assert sorted(ports) == [20101, 20102, 20103]
    assert max(ports) < first_ephemeral
    later.end_processes()
    for job in jobs:
        later.tick_until_ended(job)
    patch(launch, "ports_for", lambda token, ephemeral: iter((20101, 20102, 20103)))
    again = later.add_job("exec sleep 300")
    assert port_of(later, again) == 20101, "the port of an ended attempt is given again"
    later.end_processes()


def test_a_port_that_another_program_uses_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("", 0)) as used:
        taken = used.getsockname()[1]
        monkeypatch.setattr(
            launch, "ports_for", lambda token, end: iter((taken, 20104, *ports_for(token, end)))
        )
        rig = Rig(tmp_path)
        assert port_of(rig, rig.add_job("exec sleep 300")) != taken
        rig.end_processes()


class Idle(DirectExecutor):
    """An executor whose runners never start."""

    def launch(self, attempt: AttemptRef) -> None:
        pass


def test_an_attempt_whose_folder_is_made_again_keeps_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ports_for", lambda token, ephemeral: iter((20105, 20106)))
    rig = Rig(tmp_path, executor=Idle())
    job = rig.add_job("true")
    rig.tick()
    spec = rig.attempt_folder(job) / "spec.json"
    first = read_spec(spec.parent)
    spec.unlink()
    rig.launcher.launch(rig.store.attempts(job)[0].id)
    assert read_spec(spec.parent)["env"] == first["env"]
    assert first["env"]["MASTER_PORT"] == "20105"
