"""Tests the command `adopt`, with real processes and stored GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpu_scheduler.clock import Clock
from gpu_scheduler.control import adopt
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.store.requests import launch_context
from tests import changes
from tests.cli.desk import Desk
from tests.processes import has_arguments, is_zombie
from tests.users import User
from tests.waiting import wait_for

Process = subprocess.Popen[bytes]
CODE = "import time; time.sleep(600)"
NO_SCHEDULER = "gpu-scheduler: no scheduler is running; the next one watches the process (`start`)\n"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Starts a process in the folder `train` that writes to `train.log`."""
    (tmp_path / "train").mkdir()
    with open(tmp_path / "train.log", "wb") as log:
        words = ["python", "-I", "-S", "-c", CODE, "--lr", "1e-4", "--password=hunter2"]
        env = {"PATH": os.path.dirname(sys.executable), "WANDB_API_KEY": "secret"}
        started = subprocess.Popen(
            words, executable=sys.executable, cwd=tmp_path / "train", env=env, stdout=log
        )
    wait_for(lambda: has_arguments(started.pid))
    yield started
    started.kill()
    started.wait()


def listed(desk: Desk, *pids: int, gpu: int = 1, withheld: bool = False) -> None:
    """Records a sample in which these processes use one of the two GPUs."""
    assert desk.store
    here = tuple(GpuProcess(pid, 8000) for pid in pids)
    samples = [
        GpuSample(
            f"SIM-{i}", i, "Simulated 24 GiB", 24576, 0, 0.0, None if withheld else (here if i == gpu else ())
        )
        for i in range(2)
    ]
    desk.writer.record_gpus(samples, [one.uuid for one in samples], Clock().now())


def refusal(desk: Desk, *words: object) -> tuple[int, str]:
    """Adopts nothing; returns the exit code and the error."""
    before = desk.store.db.rows("SELECT count(*) FROM job")[0][0]
    code, out, err = desk.run("adopt", *words)
    assert (out, desk.store.db.rows("SELECT count(*) FROM job")[0][0]) == ("", before)
    return code, err.removeprefix("gpu-scheduler: ").rstrip("\n")


def test_adopt_prints_the_job_its_command_and_its_folder(desk: Desk, process: Process) -> None:
    with desk.scheduler():
        listed(desk, process.pid)
        code, out, err = desk.run("adopt", process.pid, "--name", "exp02-training")
    assert (code, err) == (
        0,
        "gpu-scheduler: it uses GPU 1; no other job starts there, because --vram was not given\n",
    )
    assert out == (
        f"Adopted PID {process.pid} as job 1: exp02-training\n"
        f"    cmd: python -I -S -c 'import time; time.sleep(600)' --lr 1e-4 --password=(hidden)\n"
        f"    cwd: {desk.path}/train\n"
    )


def test_the_job_is_what_the_process_was_started_with(desk: Desk, process: Process) -> None:
    listed(desk)
    code, _, err = desk.run("adopt", process.pid, "--gpus", "0", "--vram", "9G")
    assert (code, err) == (0, f"gpu-scheduler: it uses GPU 0\n{NO_SCHEDULER}")
    job = desk.store.job(1)
    assert job is not None
    assert job.adopted is not None
    assert (job.adopted.pid, job.adopted.start_ticks) == (process.pid, ticks_of(process.pid))
    assert (job.adopted.gpus, job.adopted.log) == (("SIM-0",), str(desk.path / "train.log"))
    assert (job.source, job.name, job.spec.gpus, job.spec.vram) == ("adopt", None, 1, 9216)
    assert (job.spec.cwd, job.spec.command) == (
        str(desk.path / "train"),
        "python -I -S -c 'import time; time.sleep(600)' --lr 1e-4 --password=hunter2",
    )
    environment = launch_context(desk.store, 1).environment
    assert environment is not None
    assert environment["WANDB_API_KEY"] == "secret"


def test_several_gpus_are_those_of_the_process_and_its_children(desk: Desk, tmp_path: Path) -> None:
    popen = f"subprocess.Popen([sys.executable, '-c', {CODE!r}])"
    code = f"import subprocess, sys; p = {popen}; print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with desk.scheduler():
            assert desk.store
            samples = [
                GpuSample(f"SIM-{i}", i, "card", 24576, 0, 0.0, (GpuProcess(pid, 9),))
                for i, pid in enumerate((child, parent.pid))
            ]
            desk.writer.record_gpus(samples, [one.uuid for one in samples], Clock().now())
            code_, _, err = desk.run("adopt", parent.pid)
        assert code_ == 0
        assert "it uses GPUs 0, 1;" in err
        assert "its output does not go to a file" in err
        os.kill(child, 9)


def test_a_program_that_is_not_found_by_its_name_is_started_by_its_path(desk: Desk) -> None:
    listed(desk)
    for name in ("-bash", "./missing", "no-such-program"):
        with subprocess.Popen([name, "-c", CODE], executable=sys.executable) as process:
            wait_for(lambda process=process: has_arguments(process.pid))  # type: ignore[misc]
            assert desk.run("adopt", process.pid, "--gpus", "0")[0] == 0
            process.kill()
    commands = [row[0] for row in desk.store.db.rows("SELECT text FROM job")]
    assert commands == [f"{os.path.realpath(sys.executable)} -c 'import time; time.sleep(600)'"] * 3


def test_adopt_needs_no_scheduler_that_has_run_before(desk: Desk, process: Process) -> None:
    code, out, err = desk.run("adopt", process.pid, "--simulate", "2", "--gpus", "1")
    assert code == 0, err
    assert out.startswith(f"Adopted PID {process.pid} as job 1\n")
    assert err.endswith(NO_SCHEDULER)


def test_refuses_what_is_no_process_of_the_user(desk: Desk) -> None:
    listed(desk)
    assert refusal(desk, 4194304) == (2, "PID 4194304 cannot be adopted: there is no such process")
    ended = subprocess.Popen(["/bin/true"])
    wait_for(lambda: is_zombie(ended.pid))
    assert refusal(desk, ended.pid) == (
        2,
        f"PID {ended.pid} cannot be adopted: it has ended and waits for its parent to collect it",
    )
    ended.wait()
    assert refusal(desk, os.getpid())[1].startswith(
        f"PID {os.getpid()} cannot be adopted: this command runs in it"
    )
    assert refusal(desk, 1)[0] == 2
    assert refusal(desk, "train")[0] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_refuses_the_process_of_another_user(desk: Desk) -> None:
    listed(desk)
    user = User(54321)
    try:
        assert refusal(desk, user.pid, "--gpus", "0") == (
            2,
            f"PID {user.pid} cannot be adopted: it belongs to another user; only its owner can adopt it",
        )
    finally:
        user.kill()


def test_refuses_the_processes_of_a_scheduler(desk: Desk) -> None:
    job = desk.run_job("sleep 600 & env -i sleep 600")
    [attempt] = desk.store.attempts(job)
    from gpu_scheduler.attempts.observe import processes_of

    def members() -> tuple[int, ...]:
        found = processes_of(desk.folders).get(attempt.token, ())
        return found if len(found) >= 4 else ()

    for pid in wait_for(members):
        code, error = refusal(desk, pid, "--gpus", "0")
        assert code == 1
        assert error.startswith(f"PID {pid} cannot be adopted: it ")
        assert "belongs to" in error
    with desk.scheduler() as scheduler:
        assert refusal(desk, scheduler, "--gpus", "0") == (
            2,
            f"PID {scheduler} cannot be adopted: the scheduler (pid {scheduler}) runs in it",
        )


def test_refuses_a_process_that_is_adopted_already(desk: Desk, process: Process) -> None:
    listed(desk)
    assert desk.run("adopt", process.pid, "--gpus", "0")[0] == 0
    assert refusal(desk, process.pid, "--gpus", "0") == (
        1,
        f"PID {process.pid} cannot be adopted: it is already job 1",
    )


def test_refuses_a_process_whose_gpus_are_unknown(desk: Desk, process: Process) -> None:
    listed(desk, withheld=True)
    words = (process.pid, "--simulate", "2")
    assert refusal(desk, *words) == (
        1,
        f"PID {process.pid} does not use a GPU yet: try again later, or name its GPUs with --gpus",
    )
    assert refusal(desk, process.pid, "--gpus", "7") == (2, "--gpus: there is no GPU 7; the GPUs are 0, 1")


def test_attributes_apply_to_the_job(desk: Desk, process: Process) -> None:
    listed(desk)
    words = ("--priority", "HIGH", "--preempt-signal", "USR1", "--checkpoints", "out/epoch_*.pt")
    assert desk.run("adopt", process.pid, "--gpus", "0", *words, "--resume-flag", "ckpt")[0] == 0
    job = desk.store.job(1)
    assert job is not None
    spec = job.spec
    assert (job.priority, spec.preempt_signal, spec.checkpoints) == (100, "USR1", "out/epoch_*.pt")
    assert spec.resume_flag == "--ckpt"


#: Overwrites the memory that shows the command line, as setproctitle does, and then waits.
TITLE = """
import ctypes, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[45]), int(fields[46])
title = {title!r}
ctypes.memset(start, 0, end - start)
ctypes.memmove(start, title, len(title))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["python", "-c", TITLE.format(title=b"trainer: step 3")], "trainer: step 3"),
        (["python", "-c", TITLE.format(title=b"")], sys.executable),
        (["trainer"], "trainer"),
        (["python"], "python"),
    ],
    ids=["title", "empty title", "one word", "an interpreter alone"],
)
def test_a_process_that_hides_its_command_line_cannot_be_started_again(
    desk: Desk, words: list[str], shown: str
) -> None:
    listed(desk)
    with subprocess.Popen(
        words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        if len(words) == 1:
            started.stdin.write(b"print('ready', flush=True); import time; time.sleep(600)\n")
            started.stdin.close()
        assert started.stdout.readline() == b"ready\n"
        code, out, err = desk.run("adopt", started.pid, "--gpus", "0")
        started.kill()
    assert code == 0
    assert (
        "it has replaced its command line by a title, so it cannot be started again unless `set 1 com" in err
    )
    assert f"    cmd: {os.path.realpath(shown) if '/' in shown else shown}\n" in out
    desk.record(changes.finish(1, Outcome.FAILED))
    said = "gpu-scheduler: it is not known how to start job 1; `retry 1 --set command='…'` sets its command\n"
    for up in (False, True):
        with desk.scheduler() if up else nullcontext():
            for verb in (["retry", "1"], ["resume", "--job", "1"], ["resume", "--job", "1", "--from", "/"]):
                assert desk.run(*verb) == (1, "", said)
    assert "`retry 1 --set command='…'` runs it again" in desk.run("why", 1)[1]
    with desk.scheduler():
        assert desk.run("set", 1, "command=python t.py")[:2] == (0, "job 1: command set\n")
        assert desk.run("retry", 1)[0] == 0


def test_refuses_gpus_that_the_driver_or_the_scheduler_does_not_show(
    desk: Desk, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(desk)
    samples = [GpuSample("SIM-0", 0, "card"), GpuSample("SIM-7", 7, "card", processes=())]
    monkeypatch.setattr(adopt, "_probed", lambda *_: tuple(samples))
    assert refusal(desk, process.pid) == (
        1,
        f"the driver does not list the processes on each GPU: name the GPUs of PID {process.pid} with --gpus",
    )
    samples[1] = GpuSample("SIM-7", 7, "card", processes=(GpuProcess(process.pid, 8000),))
    code, error = refusal(desk, process.pid)
    assert code == 1
    assert error.startswith(f"PID {process.pid} uses GPU 7, which this scheduler does not manage\n")


def test_refuses_wrong_values(desk: Desk, process: Process) -> None:
    listed(desk)
    assert "name" in refusal(desk, process.pid, "--gpus", "0", "--name", "a b")[1]
    assert refusal(desk, process.pid, "--gpus", "all")[0] == 2
    assert refusal(desk, process.pid, "--vram", "much")[0] == 2


def test_cancel_all_spares_adopted_jobs(desk: Desk, process: Process) -> None:
    listed(desk)
    desk.run("adopt", process.pid, "--gpus", "0")
    other = desk.job("true")
    code, out, _ = desk.run("cancel", "--all")
    assert code == 0
    assert out == (f"job {other}: cancelled\njob 1: continues, because it was adopted; `cancel 1` ends it\n")
    assert (desk.requests(), desk.state(other), process.poll()) == ([], "finished", None)


def test_without_a_scheduler_an_adopted_process_has_an_eta_and_its_preemption_is_recorded(
    desk: Desk, process: Process
) -> None:
    listed(desk)
    (desk.path / "train.log").write_text("Step 1/400\nStep 2/400\nStep 100/400\n")
    desk.run("adopt", process.pid, "--gpus", "0")
    os.utime(desk.path / "train.log", (2**31, 2**31))  # an estimate from an earlier moment decreases
    (desk.path / "train.log").rename(desk.path / "moved.log")
    for words in (["eta"], ["eta", "1"]):
        code, out, err = desk.run(*words, "--json")
        assert (code, err) == (0, "")
        [job] = json.loads(out)["jobs"]
        assert (job["state"], job["progress"]["percent"]) == ("queued", 25)
        assert job["progress"]["eta_s"] is not None
    code, out, err = desk.run("preempt", 1)
    assert (code, out) == (1, "")
    assert err == "gpu-scheduler: job 1 has not ended; the request takes effect when the scheduler starts\n"
    assert desk.requests() == [("preempt", "1")]
    assert process.poll() is None
    process.kill()
    process.wait()
    assert desk.run("eta", 1)[0] == 1


def test_refuses_to_hold_or_change_a_process_that_is_not_watched_yet(desk: Desk, process: Process) -> None:
    listed(desk)
    desk.run("adopt", process.pid, "--gpus", "0")
    for words, able in ((("hold", "1"), "held"), (("set", "1", "vram=3G"), "changed")):
        code, out, err = desk.run(*words)
        assert code == 1
        assert f"job 1 is an adopted process, which already runs, so it cannot be {able}" in out + err
    assert desk.requests() == []
