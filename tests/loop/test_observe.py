"""Tests what a round records about failures, GPU samples, misplaced processes and retries."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts import observe
from gpu_scheduler.attempts.job_logs import read_tail
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample, Snapshot
from gpu_scheduler.core.model.job import AttemptStatus
from gpu_scheduler.daemon.reporter import EventReporter
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from tests.loop.rig import Rig
from tests.reasons import words
from tests.records import attempt_record

TRACEBACK = 'Traceback (most recent call last):\n  File "/x/t.py", line 1, in <module>\n'


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, gpus=3)


def test_a_failure_is_explained_in_the_store_and_in_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.loop.on_recorded = EventReporter(
        rig.store, rig.clock, rig.loop.settings, None, rig.loop.progress
    ).actions_recorded
    caplog.set_level(logging.INFO)
    (rig.folder / "output").write_text(f"{TRACEBACK}ValueError: bad\x1b[0m rate\n")
    job = rig.add_job("cat output; exit 1")
    assert words(rig.tick_until_ended(job).reason) == "exit code 1: ValueError: bad rate"
    assert words(rig.store.attempts(job)[0].reason) == "exit code 1: ValueError: bad rate"
    assert re.search(
        rf"job {job} finished \[FAILED\] in \d\.\ds — exit code 1: ValueError: bad rate \| peak vram .*"
        r" \| no declaration.* \(log: ",
        caplog.text,
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("kill -9 $$", "killed by SIGKILL"),
        ("bash -c 'kill -9 $$'; exit $?", "exit code 137 (a program it ran was killed by SIGKILL)"),
        (
            "no_such_program",
            "exit code 127 (command not found): bash: line 1: no_such_program: command not found",
        ),
        ("exit 3", "exit code 3"),
    ],
)
def test_records_why_a_job_ended(rig: Rig, command: str, reason: str) -> None:
    assert words(rig.tick_until_ended(rig.add_job(command)).reason) == reason


def test_reads_the_log_of_a_failed_job_only_once_and_reads_no_other_logs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str | None] = []

    def counting(path: str | None) -> str:
        read.append(path)
        return read_tail(path)

    monkeypatch.setattr(observe, "read_tail", counting)
    rig.tick_until_ended(rig.add_job("true"))
    assert read == []
    job = rig.add_job("false")
    rig.tick_until_ended(job)
    assert read == [rig.store.attempts(job)[0].log]


@pytest.mark.parametrize(
    ("gpu", "default", "own", "cuda", "advised"),
    [
        (1, "physical", None, None, True),
        (0, "physical", None, None, False),
        (1, "visible", None, None, False),
        (1, "visible", "physical", None, True),
        (1, "physical", "visible", None, False),
        (1, "physical", None, "off", False),
    ],
)
def test_the_reason_of_a_failed_job_explains_remapped_gpu_numbers(
    rig: Rig, gpu: int, default: str, own: str | None, cuda: str | None, advised: bool
) -> None:
    rig.store.record_options(replace(StartOptions(), cuda_ids=default))
    job = rig.add_job("echo 'RuntimeError: CUDA error: invalid device ordinal'; : --cuda 0; exit 1",
                  allowed=(gpu,), cuda_ids=own, cuda=cuda)  # fmt: skip
    reason = words(rig.tick_until_ended(job).reason)
    assert "invalid device ordinal" in reason
    assert (f"it was given --cuda {gpu}" in reason) is advised


def test_reads_recorded_start_options_even_if_they_are_from_a_later_version(tmp_path: Path) -> None:
    store = Store(DataDir.of(str(tmp_path / "state.json")), create=True)
    assert store.recorded_options() == StartOptions()
    options = StartOptions(mem_threshold=0.5, cuda_ids="visible", llm_config="/etc/llm.json", gpus="0,2")
    store.record_options(options)
    assert store.recorded_options() == options
    store.db.set_meta("started_with", '{"cuda_ids": "visible", "of a later version": 1}')
    assert store.recorded_options() == StartOptions(cuda_ids="visible")
    store.close()


def test_reads_only_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first line\nsecond\xff\nthird")
    assert read_tail(str(log)) == "first line\nsecond\ufffd\nthird"
    assert read_tail(str(log), max_bytes=12) == "third"
    assert read_tail(str(log), max_bytes=3) == "ird"
    bar = "".join(f"\r{n} %" for n in range(20_000))
    log.write_text(f"{bar}Traceback (most recent call last):\nValueError: x\n")
    assert read_tail(str(log)).endswith("\r19999 %Traceback (most recent call last):\nValueError: x\n")
    log.write_text(f"RuntimeError: {'x' * 100_000} invalid device ordinal\n--- failed: exit code 1\n")
    assert "x invalid device ordinal\n" in read_tail(str(log))
    log.write_text(f"{'y' * 60_000}\n{'x' * 5_000}\n{'z' * 60_000}\n")
    assert read_tail(str(log)) == f"{'x' * 5_000}\n{'z' * 60_000}\n"
    (tmp_path / "link").symlink_to(log)
    os.mkfifo(tmp_path / "fifo")
    for nothing in (None, *(str(tmp_path / name) for name in ("link", "fifo", "missing", "."))):
        assert read_tail(nothing) == ""


def on_gpu_1(rig: Rig, pid: int) -> None:
    """Takes a sample in which the process is on GPUs 1 and 2. Only GPU 1 is managed."""
    samples = tuple(
        GpuSample(f"U{i}", i, "card", 24576, 0, 0.0, (GpuProcess(pid, 9),) if i else ()) for i in range(3)
    )
    rig.watch.accept_sample(Snapshot(rig.clock.now().boot, samples))


def test_a_misplaced_process_is_reported_only_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.loop.recorder.record_gpus((), ["U0", "U1"], rig.clock.now())
    rig.loop.on_recorded = EventReporter(
        rig.store, rig.clock, rig.loop.settings, None, rig.loop.progress
    ).actions_recorded
    job = rig.add_job("echo $$ > pid; sleep 60")
    rig.runner_pid(job)
    rig.tick_until(
        lambda: (rig.folder / "pid").exists() and (rig.folder / "pid").read_text(), "the pid of the job"
    )
    pid = int((rig.folder / "pid").read_text())
    on_gpu_1(rig, pid)
    rig.tick()
    assert rig.store.attempts(job)[0].misplaced == (("U1", pid), ("U2", pid))
    again = Rig(rig.folder, gpus=3)
    again.loop.on_recorded = EventReporter(
        again.store, again.clock, again.loop.settings, None, again.loop.progress
    ).actions_recorded
    on_gpu_1(again, pid)
    again.tick()
    messages = [record.getMessage() for record in caplog.records if "was given" in record.getMessage()]
    assert [text.partition(":")[0] for text in messages] == [
        f"job {job} was given GPU 0 but uses GPU 1 (process {pid})",
        f"job {job} was given GPU 0 but uses GPU 2 (process {pid})",
    ]
    add_request(again.store, "cancel", str(job), grace_s=0)
    assert again.tick_until_ended(job).outcome == "cancelled"


def test_stores_the_processes_and_the_last_loads_of_each_gpu(rig: Rig) -> None:
    processes = (GpuProcess(7, None), GpuProcess(8, 12, graphics_only=True))
    for load in (10.0, None, 30.0, 40.0, 50.0, 60.0):
        samples = [GpuSample("U0", 0, "card", 24576, 9, load, processes), GpuSample("U1", 1, "c", 1, 0, load)]
        rig.loop.recorder.record_gpus(samples, None, rig.clock.now())
    first, second, _ = rig.store.gpus()
    assert first.last.processes == processes
    assert second.last.processes is None
    assert first.loads == (None, 30.0, 40.0, 50.0, 60.0)


def test_an_oom_retry_requests_at_most_the_memory_of_its_gpu_even_while_gpus_are_unreadable(rig: Rig) -> None:
    go = rig.folder / "go"
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    job = rig.add_job(
        f"until [ -e {go} ]; do sleep 0.02; done; echo {text}; exit 1", vram=20_000, oom_retries=1
    )
    rig.runner_pid(job)
    rig.watch.record_failure("hangs")
    go.touch()
    rig.tick_until(lambda: rig.job(job).oom_retries_used == 1, "the end of the first attempt")
    assert rig.job(job).min_vram_mib == 24_576 - 512 - 200
    assert rig.tick_until_ended(job).oom_retries_used == 1
    assert len(rig.store.attempts(job)) == 2


def test_the_fail_retries_of_a_job_override_those_of_the_scheduler(rig: Rig) -> None:
    again, never = rig.add_job("exit 3", fail_retries=1), rig.add_job("exit 3", fail_retries=0)
    rig.loop.settings = replace(rig.loop.settings, fail_retries=9)
    rig.tick_until(lambda: rig.job(again).fail_retries_used == 1, "the end of the first attempt")
    assert rig.job(again).state == "queued"
    assert (rig.job(again).not_before_boot or 0.0) > rig.clock.now().boot
    assert rig.tick_until_ended(never).outcome == "failed"
    assert rig.job(never).fail_retries_used == 0


def test_the_log_of_a_failure_is_the_one_that_the_claim_names_if_the_store_has_lost_it(rig: Rig) -> None:
    """The path of the log is recorded without a sync, so a power cut may undo that."""
    log = rig.folder / "job.log"
    log.write_text("ValueError: bad rate\n")
    attempt = attempt_record(job_id=rig.add_job("exit 1"), log=None)
    found = observe.failure_context_of(rig.store, attempt, AttemptStatus("dead", log=str(log)))
    assert found.log_tail == "ValueError: bad rate\n"
