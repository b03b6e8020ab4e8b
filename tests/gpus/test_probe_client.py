"""Tests of the probe process, which may hang or die but must never block or outlive its client."""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.core.model.gpu import FaultKind, GpuFault, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_process import (
    ProbeClient,
    ProbeFailure,
    ProbeProcess,
    UnreadableError,
    decode,
    encode,
)
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.system import simulated_usage
from tests.fakes.machine import FakeGpu, FakeMachine
from tests.gpus.wait import until


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def answer(probe: ProbeClient, timeout_s: float = 10.0) -> Snapshot | ProbeFailure:
    end = time.monotonic() + timeout_s
    while True:
        select.select([probe], [], [], max(0.0, end - time.monotonic()))
        reply = probe.read()
        if reply is not None:
            return reply
        assert time.monotonic() < end, "no answer"


def test_probe_does_not_belong_to_the_job_that_restarted_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = secrets.token_hex(16)
    monkeypatch.setenv(TOKEN, token)
    child = ProbeProcess(sys.executable, ("--kind", "auto", "--simulate", "1"))
    try:
        assert child.pid not in processes_of({token: Path("/nowhere")}).get(token, ())
    finally:
        child.kill()
        until(child.has_ended)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    machine = FakeMachine("gputil", tmp_path / "machine", monkeypatch)
    machine.plant(FakeGpu())
    (machine.folder / "hang").touch()
    return machine


def hung_pid(machine: FakeMachine) -> int:
    until((machine.folder / "hanging").exists)
    return int((machine.folder / "hanging").read_text())


def test_each_query_has_one_answer(tmp_path: Path) -> None:
    with ProbeClient("simulated", "2", str(tmp_path)) as probe:
        assert (probe.read(), probe.queried_at, probe.deadline) == (None, None, None)
        before = boot_time()
        probe.query()
        asked_at = probe.queried_at
        probe.query()
        assert probe.queried_at == asked_at
        reply = answer(probe)
        assert isinstance(reply, Snapshot)
        assert [gpu.uuid for gpu in reply.gpus] == ["SIM-0", "SIM-1"]
        assert before <= reply.taken_at <= boot_time()
        assert (probe.queried_at, probe.read()) == (None, None)
        assert select.select([probe], [], [], 0.1) == ([], [], [])


def test_later_queries_reuse_the_process_and_the_descriptor(tmp_path: Path) -> None:
    with ProbeClient("simulated", "2", str(tmp_path)) as probe:
        fd = probe.fileno()
        probe.query()
        answer(probe)
        pid = probe.pid
        probe.query()
        answer(probe)
        assert (probe.pid, probe.fileno()) == (pid, fd)


def test_hanging_query_is_killed_and_a_later_query_works(hanging: FakeMachine) -> None:
    with ProbeClient("gputil", deadline_s=5.0) as probe:
        fd = probe.fileno()
        probe.query(now=100.0)
        smi = hung_pid(hanging)
        first = probe.pid
        assert first is not None
        assert probe.read() is None
        assert probe.expire(now=104.9) is None
        reply = probe.expire(now=105.0)
        assert isinstance(reply, ProbeFailure)
        assert "no answer from the GPU driver within 5 s" in reply.text
        assert (probe.queried_at, probe.pid, probe.expire(now=999.0)) == (None, None, None)
        until(lambda: simulated_usage.start_ticks(smi) is None)
        until(lambda: simulated_usage.start_ticks(first) is None)
        (hanging.folder / "hang").unlink()
        probe.query()
        assert isinstance(answer(probe), Snapshot)
        assert (probe.fileno(), probe.pid != first) == (fd, True)


def test_at_most_three_unkillable_query_processes_are_left_behind(
    hanging: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SIGTERM ends the probe process but not the program that it waits for, as if the kernel blocked it.
    monkeypatch.setattr("gpu_scheduler.gpus.probes.probe_process._KILL", signal.SIGTERM)
    left: set[int] = set()
    with ProbeClient("gputil", deadline_s=5.0) as probe:
        for _ in range(3):
            probe.query(now=100.0)
            left.add(hung_pid(hanging))
            (hanging.folder / "hanging").unlink()
            assert probe.expire(now=105.0) is not None
        assert all(simulated_usage.start_ticks(pid) is not None for pid in left)
        for _ in range(2):
            probe.query()
            reply = probe.read()
            assert isinstance(reply, ProbeFailure)
            assert reply.text == "3 earlier queries still hang in the driver"
        assert (len(left), (hanging.folder / "hanging").exists()) == (3, False)
        (hanging.folder / "hang").unlink()
        until(lambda: all(simulated_usage.start_ticks(pid) is None for pid in left))
        probe.query()
        assert isinstance(answer(probe), Snapshot)


def test_kills_a_probe_process_whose_library_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine("nvml", tmp_path / "machine", monkeypatch)
    machine.plant(FakeGpu())
    (machine.folder / "hang").touch()
    with ProbeClient("nvml", deadline_s=5.0) as probe:
        probe.query(now=100.0)
        assert hung_pid(machine) == probe.pid
        assert isinstance(probe.expire(now=105.0), ProbeFailure)
        (machine.folder / "hang").unlink()
        probe.query()
        assert isinstance(answer(probe), Snapshot)


def test_query_is_answered_when_the_driver_responds_again(hanging: FakeMachine) -> None:
    with ProbeClient("gputil") as probe:
        probe.query()
        hung_pid(hanging)
        assert probe.read() is None
        (hanging.folder / "hang").unlink()
        assert isinstance(answer(probe), Snapshot)


def test_first_sample_times_out_if_the_driver_hangs(hanging: FakeMachine) -> None:
    with ProbeClient("gputil") as probe, pytest.raises(GpuStateError, match=r"within 0\.3 s\n.*nvidia-smi"):
        probe.sample(0.3)


def test_query_can_still_be_answered_after_the_first_sample_timed_out(hanging: FakeMachine) -> None:
    with ProbeClient("gputil") as probe:
        with pytest.raises(UnreadableError, match=r"within 0\.3 s\n.*`sudo nvidia-smi -pm 1`") as caught:
            probe.sample(0.3)
        assert caught.value.why == "no answer from the GPU driver within 0.3 s"
        asked_at = probe.queried_at
        assert asked_at is not None
        assert probe.deadline == asked_at + 20.0
        assert probe.expire(asked_at + 19.9) is None
        hung_pid(hanging)
        (hanging.folder / "hang").unlink()
        assert isinstance(answer(probe), Snapshot)


def test_query_fails_if_the_process_ends_and_the_next_query_works(tmp_path: Path) -> None:
    with ProbeClient("simulated", "1", str(tmp_path)) as probe:
        probe.query()
        answer(probe)
        assert probe.pid is not None
        os.kill(probe.pid, signal.SIGKILL)
        reply = answer(probe)
        assert isinstance(reply, ProbeFailure)
        assert "process ended" in reply.text
        probe.query()
        assert isinstance(answer(probe), Snapshot)


def test_last_error_line_of_a_failed_process_is_reported() -> None:
    with (
        ProbeClient("simulated", "nonsense") as probe,
        pytest.raises(GpuStateError, match="'nonsense' is not a"),
    ):
        probe.sample()


def test_missing_interpreter_is_reported() -> None:
    with ProbeClient("simulated", interpreter="/nowhere/python") as probe:
        with pytest.raises(GpuStateError, match=r"cannot be started: .*/nowhere/python"):
            probe.sample()
        assert (probe.queried_at, probe.read()) == (None, None)


def test_modules_in_the_current_folder_do_not_shadow_those_of_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "json", "gpu_scheduler", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    with ProbeClient("simulated", "1", "sim") as probe:
        assert len(probe.sample().gpus) == 1


def test_close_ends_the_process(tmp_path: Path) -> None:
    probe = ProbeClient("simulated", "1", str(tmp_path))
    probe.sample()
    pid = probe.pid
    assert pid is not None
    probe.close()
    # On a loaded machine, a killed process may outlive the 0.2 s for which `close` waits.
    until(lambda: simulated_usage.start_ticks(pid) is None)
    probe.close()


ASKER = """
import sys, time
from gpu_scheduler.gpus.probes.probe_process import ProbeClient
probe = ProbeClient(sys.argv[1])
probe.query()
print(probe.pid, flush=True)
time.sleep(600)
"""


def test_close_does_not_warn_about_a_process_blocked_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = ProbeClient("simulated", "1", str(tmp_path))
    probe.start()
    pid = probe.pid
    assert pid is not None
    with monkeypatch.context() as patch:
        patch.setattr(ProbeProcess, "has_ended", lambda self: False)
        probe.close()
    del probe
    gc.collect()  # an unreaped Popen would warn here, and tests treat warnings as errors
    assert os.waitpid(pid, 0)[0] == pid


@pytest.mark.parametrize("hang", [False, True])
def test_probe_processes_end_when_their_client_is_killed(hang: bool, hanging: FakeMachine) -> None:
    if not hang:
        (hanging.folder / "hang").unlink()
    with subprocess.Popen(
        [sys.executable, "-c", ASKER, "gputil"], stdout=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        left = [int(asker.stdout.readline())]
        if hang:
            left.append(hung_pid(hanging))
        assert all(simulated_usage.start_ticks(pid) is not None for pid in left)
        asker.kill()
    until(lambda: all(simulated_usage.start_ticks(pid) is None for pid in left))


def test_decoding_an_encoded_answer_restores_it() -> None:
    gpu = GpuSample(
        "GPU-a",
        0,
        "Fake",
        24576,
        None,
        None,
        (GpuProcess(7, None, True, 5.5),),
        GpuFault(FaultKind.QUERY_FAILED, "é\n"),
    )
    for reply in (Snapshot(12.5, (gpu,)), Snapshot(1.0, ()), ProbeFailure("broken", "mend it")):
        line = encode(3, reply)
        assert line.count(b"\n") == 1
        assert decode(line) == (3, reply)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"3", b'{"number": 1}', b'{"number": 1, "taken_at": 1, "gpus": [{}]}']
)
def test_rejects_a_line_that_is_not_an_answer(line: bytes) -> None:
    with pytest.raises(ValueError, match="invalid answer from the probe"):
        decode(line)
