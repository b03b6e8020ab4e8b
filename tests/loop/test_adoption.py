"""Tests of adopted processes with a real loop, store and runners, and with real processes to adopt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.finding import Check
from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample, Snapshot
from gpu_scheduler.core.model.job import AdoptedProcess, RunnerIdentity, StopRequest
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.daemon.restore import in_own_folder
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.show import why_text
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.logs import open_log
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.requests import add_request, request_answer
from gpu_scheduler.system.gpu_claims import read_gpu_locks
from tests import changes
from tests.loop.rig import Rig
from tests.processes import has_arguments
from tests.reasons import words
from tests.waiting import wait_for

#: Python code that waits until the file `go` exists and then exits with the code in it.
WAIT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nos._exit(int(open('go').read()))"
Process = subprocess.Popen[bytes]
StartProcess = Callable[[], Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartProcess]:
    """Returns a function that starts a process in the test's folder. It is killed after the test."""
    started: list[Process] = []

    def one() -> Process:
        started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", WAIT], cwd=tmp_path))
        wait_for(lambda: has_arguments(started[-1].pid))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    for attempt in made.store.active_attempts():
        runner = attempt.runner
        if attempt.state.is_open and runner is not None and ticks_of(runner.pid) == runner.start_ticks:
            os.kill(runner.pid, signal.SIGKILL)


def identity(process: Process, *gpus: str, **changes: object) -> AdoptedProcess:
    ticks = ticks_of(process.pid)
    assert ticks is not None
    found = AdoptedProcess(process.pid, ticks, boot_id(), 1000.5, gpus or ("U0",))
    return replace(found, **changes)


def adopt(rig: Rig, process: AdoptedProcess, **values: object) -> int:
    """Inserts a job that is this process and that a retry would start as `echo again`."""
    spec = JobSpec("command", "echo again", str(rig.folder), command="echo again", gpus=1)
    return rig.store.insert_job(replace(spec, **values), "adopt", adopted=process)


def runner_of(rig: Rig, job: int, attempt: int) -> RunnerIdentity:
    """Runs rounds until this attempt of the job is running; returns its runner."""

    def found() -> RunnerIdentity | None:
        newest = rig.store.attempts(job)[-1:]
        is_running = rig.job(job).state is JobState.RUNNING and newest and newest[0].number == attempt
        return newest[0].runner if is_running else None

    rig.tick_until(found, f"attempt {attempt} running")
    runner = found()
    assert runner is not None
    return runner


def finish(folder: Path, code: int) -> None:
    (folder / "new").write_text(str(code))
    (folder / "new").rename(folder / "go")


def sample(rig: Rig, *processes: GpuProcess) -> None:
    """Takes a sample in which the first GPU has these processes."""
    used = sum(process.used_mib or 0 for process in processes)
    gpus = (
        GpuSample("U0", 0, "card", 24576, used, 50.0, processes),
        GpuSample("U1", 1, "card", 24576, 0, 0.0, ()),
    )
    rig.watch.accept_sample(Snapshot(rig.clock.now().boot, gpus))


def test_an_adopted_process_is_a_running_job_from_its_real_start_until_it_ends(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    process = start()
    job = adopt(rig, identity(process, log=str(tmp_path / "train.log")))
    runner_of(rig, job, 1)
    [attempt] = rig.store.attempts(job)
    assert (attempt.started_at, attempt.log, attempt.gpus) == (1000.5, str(tmp_path / "train.log"), ("U0",))
    finish(tmp_path, 3)
    ended = rig.tick_until_ended(job)
    assert (ended.outcome, ended.exit_code, ended.adopted) == (Outcome.FAILED, 3, None)
    assert not (tmp_path / "train.log").exists()


def test_other_jobs_keep_off_the_gpu_of_an_adopted_process(rig: Rig, start: StartProcess) -> None:
    adopted = adopt(rig, identity(start()))
    first, second = rig.add_job("until [ -e go ]; do sleep 0.01; done"), rig.add_job("true")
    runner_of(rig, adopted, 1)
    rig.tick_until(lambda: rig.job(first).state is JobState.RUNNING)
    assert rig.store.attempts(first)[0].gpus == ("U1",)
    assert rig.job(second).state is JobState.QUEUED
    finish(rig.folder, 0)
    rig.tick_until_ended(second)


def test_a_job_after_an_adopted_one_starts_when_the_process_has_ended(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind

    process = start()
    # The pid seems to be reused, so nobody knows how the process ended.
    job = adopt(rig, identity(process, start_ticks=1))
    spec = JobSpec("command", "true", str(tmp_path), command="true")
    parents = [Dependency(job, DependencyKind.COMPLETED, str(job))]
    child = rig.store.insert_job(spec, "test", dependencies=parents)
    assert rig.tick_until_ended(job).outcome is Outcome.ENDED
    assert rig.tick_until_ended(child).outcome is Outcome.COMPLETED
    assert process.poll() is None


def test_the_memory_of_an_adopted_process_counts_once(rig: Rig, start: StartProcess) -> None:
    process = start()
    sample(rig, GpuProcess(process.pid, 9000))
    rig.tick()
    job = adopt(rig, identity(process), vram=8000)
    runner_of(rig, job, 1)
    # The newest sample is still that in which the process was foreign.
    facts = rig.tick()
    assert facts.gpus[0].owners == {process.pid: rig.store.attempts(job)[0].id}
    sample(rig, GpuProcess(process.pid, 9500))
    rig.tick()
    assert rig.store.attempts(job)[0].peaks == {"U0": 9500}
    # 24576 MiB in all, 9500 x 1.05 of which belong to the process.
    beside = rig.add_job("true", vram=12_000)
    rig.tick_until(lambda: rig.job(beside).state is JobState.FINISHED)
    assert rig.store.attempts(beside)[0].gpus == ("U0",)


@pytest.fixture
def claiming(rig: Rig, tmp_path: Path) -> Iterator[Process]:
    """Starts a process that claims the whole GPU U0, as if `run` had executed it."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from gpu_scheduler.runner.locks import Wanted, claim_gpus\n"
        "held = claim_gpus(sys.argv[1], [Wanted('U0', None, 24576)])\n"
        f"assert isinstance(held, list)\nopen('claimed', 'w').close()\n{WAIT}"
    )
    rig.claim_folder.prepare()
    arguments = [code, str(rig.claim_folder.path), str(Path(__file__).parents[2])]
    with subprocess.Popen([sys.executable, "-c", *arguments], cwd=tmp_path) as process:
        wait_for((tmp_path / "claimed").exists)
        yield process
        process.kill()


def test_the_claim_of_the_process_itself_is_not_one_of_another_program(rig: Rig, claiming: Process) -> None:
    job = adopt(rig, identity(claiming))
    runner_of(rig, job, 1)
    assert [lock.pid for lock in read_gpu_locks(rig.claim_folder.path, "U0")] == [claiming.pid]
    assert rig.tick().gpus[0].claims == ()
    finish(rig.folder, 0)
    assert rig.tick_until_ended(job).outcome is Outcome.COMPLETED


def test_no_job_is_launched_in_vain_beside_a_process_that_claims_the_whole_gpu(
    rig: Rig, claiming: Process
) -> None:
    job = adopt(rig, identity(claiming), vram=8000)
    runner_of(rig, job, 1)
    beside = rig.add_job("true", vram=8000, allowed=(0,))
    rig.tick()
    assert rig.job(beside).state is JobState.QUEUED
    assert rig.store.attempts(beside) == []
    finish(rig.folder, 0)
    rig.tick_until_ended(beside)


def test_a_killed_watcher_is_replaced_and_the_process_goes_on(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    for number in (1, 2, 3):
        os.kill(runner_of(rig, job, number).pid, signal.SIGKILL)
    runner_of(rig, job, 4)
    assert process.poll() is None
    assert (rig.job(job).launch_failures, rig.job(job).recoveries) == (0, 0)
    attempts = rig.store.attempts(job)
    assert {(one.watched_pid, one.started_at) for one in attempts} == {(process.pid, 1000.5)}
    assert "another runner watches" in words(attempts[0].reason)
    finish(rig.folder, 0)
    assert rig.tick_until_ended(job).outcome is Outcome.COMPLETED


def test_a_process_keeps_its_gpu_until_the_next_watcher_runs(rig: Rig, start: StartProcess) -> None:
    job = adopt(rig, identity(start()))
    waiting = rig.add_job("true", allowed=(0,))
    os.kill(runner_of(rig, job, 1).pid, signal.SIGKILL)
    runner_of(rig, job, 2)
    assert rig.store.attempts(waiting) == []
    finish(rig.folder, 0)
    rig.tick_until_ended(waiting)


def test_a_scheduler_and_a_watcher_that_are_killed_leave_the_process_to_the_next_ones(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    process = start()
    job = adopt(rig, identity(process))
    os.kill(runner_of(rig, job, 1).pid, signal.SIGKILL)
    again = Rig(tmp_path)
    runner_of(again, job, 2)
    assert process.poll() is None
    finish(tmp_path, 0)
    assert again.tick_until_ended(job).outcome is Outcome.COMPLETED


def test_a_process_that_ends_without_a_watcher_has_ended(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    os.kill(runner_of(rig, job, 1).pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert rig.tick_until_ended(job).outcome is Outcome.ENDED


def test_a_cancel_ends_the_process(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    runner_of(rig, job, 1)
    add_request(rig.store, "cancel", str(job))
    ended = rig.tick_until_ended(job)
    assert (ended.outcome, ended.signal) == (Outcome.CANCELLED, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_cancel_survives_the_death_of_the_watcher(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    runner = runner_of(rig, job, 1)
    os.kill(runner.pid, signal.SIGSTOP)
    add_request(rig.store, "cancel", str(job), grace_s=600)
    rig.tick_until(lambda: rig.job(job).state is JobState.STOPPING)
    os.kill(runner.pid, signal.SIGKILL)
    assert rig.tick_until_ended(job).outcome is Outcome.CANCELLED
    assert process.wait() == -signal.SIGTERM


def test_a_cancel_of_a_process_that_is_not_watched_yet_ends_it(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    request = add_request(rig.store, "cancel", str(job))
    assert rig.tick_until_ended(job).outcome is Outcome.CANCELLED
    assert request_answer(rig.store, request) is not None
    assert process.wait() == -signal.SIGTERM


def test_stop_jobs_spares_an_adopted_process(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process))
    other = rig.add_job("sleep 600")
    runner_of(rig, job, 1)
    rig.tick_until(lambda: rig.job(other).state is JobState.RUNNING)
    add_request(rig.store, "stop", jobs=True, grace_s=1.0)
    rig.tick_until(lambda: rig.loop.stop_requested)
    assert rig.job(other).outcome is Outcome.CANCELLED
    assert rig.job(job).state is JobState.RUNNING
    assert process.poll() is None


def test_a_retry_starts_the_command_of_the_process(rig: Rig, start: StartProcess, tmp_path: Path) -> None:
    job = adopt(rig, identity(start()))
    runner_of(rig, job, 1)
    finish(tmp_path, 1)
    rig.tick_until_ended(job)
    add_request(rig.store, "retry", str(job))
    assert rig.tick_until_ended(job).outcome is Outcome.COMPLETED
    second = rig.store.attempts(job)[1]
    assert second.watched_pid is None
    assert "again" in Path(second.log or "").read_text()


def test_after_a_reboot_the_job_is_held_and_no_longer_adopted(rig: Rig, start: StartProcess) -> None:
    process = start()
    never_watched = adopt(rig, identity(process, boot_id="earlier"))
    job = adopt(rig, identity(process))
    os.kill(runner_of(rig, job, 1).pid, signal.SIGKILL)
    with rig.store.db.transaction() as db:
        db.execute("UPDATE attempt SET boot_id = 'earlier'")
    for one in (never_watched, job):
        held = rig.tick_until_ended(one)
        assert (held.state, held.held_by, held.adopted) == (JobState.HELD, "interrupted", None)
        assert "the machine was restarted" in words(held.reason)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("cause", "ended_as"),
    [
        ("cancelled", (JobState.FINISHED, Outcome.CANCELLED, None)),
        ("preempted", (JobState.HELD, None, "preempted")),
    ],
)
def test_a_request_to_stop_outlives_a_reboot_before_the_next_watcher(
    rig: Rig, start: StartProcess, cause: Literal["cancelled", "preempted"], ended_as: tuple[object, ...]
) -> None:
    process = start()
    job = adopt(rig, identity(process))
    runner = runner_of(rig, job, 1)
    rig.loop.recorder.record(
        [changes.ask_to_stop(job, StopRequest(cause, 60.0, stop_id="1"))], rig.clock.now()
    )
    os.kill(runner.pid, signal.SIGKILL)
    rig.tick_until(lambda: rig.job(job).state is JobState.QUEUED, "the end of the first attempt")
    with rig.store.db.transaction() as db:
        db.execute("UPDATE job SET adopted = ?", (identity(process, boot_id="earlier").to_json(),))
    ended = rig.tick_until_ended(job)
    assert (ended.state, ended.outcome, ended.held_by) == ended_as
    assert "the machine was restarted" in words(ended.reason)
    assert (ended.adopted, ended.stop) == (None, None)
    assert process.poll() is None


def test_a_copied_store_leaves_an_adopted_process_to_the_original(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    processes = [start(), start()]
    job = [adopt(rig, identity(process)) for process in processes][-1]
    moved_or_copied.adopt_folder(rig.store)
    rig.loop.recorder.record([changes.ask_to_stop(job, StopRequest("cancelled", 5.0))], rig.clock.now())
    shutil.copytree(tmp_path, tmp_path / "copy")
    copy = Rig(tmp_path / "copy")
    with pytest.raises(SchedulerError, match="is a copy of"), in_own_folder(copy.store, fresh=False):
        pass
    with in_own_folder(copy.store, fresh=True):
        pass
    copy.tick()
    assert state_counts(copy.store) == {}
    assert [process.poll() for process in processes] == [None, None]


def test_preempting_an_adopted_process_uses_the_signal_of_the_job(rig: Rig, start: StartProcess) -> None:
    process = start()
    job = adopt(rig, identity(process), preempt_signal="USR1")
    runner_of(rig, job, 1)
    add_request(rig.store, "preempt", str(job), stop_id="a", grace_s=600.0, on_timeout="kill")
    held = rig.tick_until_ended(job)
    assert (held.state, held.held_by, held.adopted) == (JobState.HELD, "preempted", None)
    assert process.wait() == -signal.SIGUSR1


def test_an_adopted_process_that_ignores_a_preemption_goes_on(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').close()\n"
    with subprocess.Popen([sys.executable, "-c", code + WAIT], cwd=tmp_path) as process:
        wait_for((tmp_path / "ready").exists)
        job = adopt(rig, identity(process))
        runner_of(rig, job, 1)
        add_request(rig.store, "preempt", str(job), stop_id="a", grace_s=0.05, on_timeout="withdraw")
        folder = rig.attempt_folder(job)
        rig.tick_until((folder / "withdrawn").exists)
        rig.tick_until(lambda: rig.job(job).state is JobState.RUNNING and rig.job(job).stop is None)
        # The next watcher does not stop it either.
        os.kill(runner_of(rig, job, 1).pid, signal.SIGKILL)
        runner_of(rig, job, 2)
        assert process.poll() is None
        finish(tmp_path, 0)
        assert rig.tick_until_ended(job).outcome is Outcome.COMPLETED


def test_why_and_logs_say_that_the_output_of_a_process_goes_to_no_file(
    rig: Rig, start: StartProcess, tmp_path: Path
) -> None:
    process = start()
    job = adopt(rig, identity(process))
    where = Location(str(tmp_path / "state.json"))

    def said(check: Check) -> str:
        [found] = [one for one in why_text.findings(diagnose(where, job)) if one.check is check]
        return found.message

    def log_error() -> str:
        with pytest.raises(SchedulerError) as refused, open_log(where, job, None) as log:
            assert log.path
        return str(refused.value)

    nowhere = "its output does not go to a file"
    assert log_error() == f"job {job} is process {process.pid}, which is not watched yet, and {nowhere}"
    runner_of(rig, job, 1)
    assert said("runs").endswith(f"; {nowhere}")
    assert said("log") == "none, because the output of the process does not go to a file"
    assert log_error() == f"job {job} is process {process.pid}, which was adopted, and {nowhere}"
    finish(tmp_path, 0)
    rig.tick_until_ended(job)
    assert said("log") == "none, because the output of the process does not go to a file"
