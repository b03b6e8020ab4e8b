"""Tests jobs on an engine from the loop to the runner, with an engine that runs them on this machine."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.folder import request_stop
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.engines import agent, start
from gpu_scheduler.engines.agent import SharedFolder, copy_runner
from gpu_scheduler.engines.engine import EngineJob, EngineUnavailableError, Order, Resources
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.moved_or_copied import RecordedFolder
from gpu_scheduler.store.pending_groups import engine_state, wait_reasons
from gpu_scheduler.store.requests import add_request
from tests.engines.world import SCALE, World
from tests.waiting import wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, sys.executable)
    yield made
    made.engine.close()
    made.rig.end_processes()


def step_until(world: World, condition: Callable[[], object], what: str = "") -> None:
    def poll() -> object:
        world.step()
        return condition()

    wait_for(poll, what, 30.0, 0.02)


def ends(world: World, job: int) -> tuple[str, Outcome | None, int | None]:
    step_until(
        world, lambda: world.rig.job(job).state in (JobState.FINISHED, JobState.HELD), f"end of job {job}"
    )
    found = world.rig.job(job)
    return found.state, found.outcome, found.exit_code


def log_of(world: World, job: int) -> str:
    return Path(world.rig.store.attempts(job)[-1].log or "").read_text()


def has_begun(world: World, job: int) -> bool:
    return bool(world.rig.store.attempts(job)) and "up\n" in log_of(world, job)


def test_a_job_runs_there_and_its_log_and_result_come_back(world: World) -> None:
    job = world.submit("echo on $CUDA_VISIBLE_DEVICES of $SLURM_JOB_ID; exit 3", gpus=1)
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 3)
    assert "on 3 of 17\n" in log_of(world, job)
    attempt = world.rig.store.attempts(job)[-1]
    assert (attempt.executor, attempt.gpus) == ("slurm", ())
    step_until(world, lambda: not world.shared_folder(job).exists(), "the shared folder is removed")


def test_a_job_waits_until_the_engine_has_a_place(world: World) -> None:
    world.engine.capacity = 0
    job = world.submit("true", gpus=2)
    step_until(world, lambda: world.engine.orders, "submitted")
    assert world.engine.orders[0].resources == Resources(2)
    world.step()
    status = world.status(job)
    assert status.claim == "accepted"
    assert status.engine is not None
    assert (status.engine.state, status.engine.reason) == ("pending", "Resources")
    world.engine.capacity = 1
    assert ends(world, job) == (JobState.FINISHED, Outcome.COMPLETED, 0)


def test_a_part_of_a_gpu_is_requested_as_a_share(world: World) -> None:
    world.engine.capacity = 0
    world.submit("true", share=500)
    world.submit("true", vram=1000)
    step_until(world, lambda: len(world.engine.orders) == 2, "submitted")
    assert {one.resources for one in world.engine.orders} == {Resources(1, 500), Resources(1)}


def test_a_job_that_no_node_can_run_is_infeasible_and_never_submitted(world: World) -> None:
    world.engine.impossible[Resources(9)] = "Requested node configuration is not available"
    job = world.submit("true", gpus=9)
    step_until(world, lambda: wait_reasons(world.rig.store), "wait reason")
    world.step()
    [reason] = wait_reasons(world.rig.store).values()
    assert reason.kind is WaitKind.ENGINE_REFUSES
    assert (world.rig.job(job).state, world.engine.orders) == (JobState.QUEUED, [])


def test_an_engine_that_has_refused_a_job_is_soon_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_ASK_AGAIN_S", 1e9)
    world.engine.impossible[Resources(9)] = "Requested node configuration is not available"
    job = world.submit("exit 6", gpus=9)
    step_until(world, lambda: "Requested node" in str(wait_reasons(world.rig.store)), "infeasible")
    world.engine.impossible.clear()
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 6)


def test_a_lost_answer_does_not_run_the_job_twice(world: World, tmp_path: Path) -> None:
    world.engine.loses_answers = True
    job = world.submit(f"echo run >> {tmp_path}/runs")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.loses_answers = False
    assert ends(world, job) == (JobState.FINISHED, Outcome.COMPLETED, 0)
    assert (len(world.engine.orders), (tmp_path / "runs").read_text()) == (1, "run\n")


def test_two_jobs_of_one_attempt_run_its_command_once(world: World, tmp_path: Path) -> None:
    job = world.submit(f"echo run >> {tmp_path}/runs; sleep 0.3")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.start(world.engine.orders[0])
    assert ends(world, job) == (JobState.FINISHED, Outcome.COMPLETED, 0)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_running_job_is_cancelled_with_its_own_grace(world: World) -> None:
    job = world.submit("trap 'echo saved; exit 0' TERM; echo up; sleep 60 & wait")
    step_until(world, lambda: has_begun(world, job), "running")
    add_request(world.rig.store, "cancel", str(job))
    assert ends(world, job)[:2] == (JobState.FINISHED, Outcome.CANCELLED)
    assert "saved" in log_of(world, job)


def test_a_job_that_has_not_begun_is_cancelled_in_both_places(world: World) -> None:
    world.engine.capacity = 0
    job = world.submit("true")
    step_until(world, lambda: world.engine.orders, "submitted")
    add_request(world.rig.store, "cancel", str(job))
    assert ends(world, job)[:2] == (JobState.FINISHED, Outcome.CANCELLED)
    assert world.engine.cancelled == {world.engine.orders[0].token}


def test_a_job_that_others_cancel_before_it_begins_is_cancelled(world: World) -> None:
    world.engine.capacity = 0
    job = world.submit("true")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.cancel(world.engine.orders[0].token)
    assert ends(world, job)[:2] == (JobState.FINISHED, Outcome.CANCELLED)
    assert len(world.engine.orders) == 1


def test_a_job_that_others_cancel_while_a_second_one_begins_has_the_result_of_that_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine.capacity = 0
    job = world.submit("exit 4")
    step_until(world, lambda: world.engine.orders, "submitted")
    [order] = world.engine.orders
    void = world.agent._void

    def begin_first(*args: Any, **values: Any) -> None:
        world.engine.start(order)
        wait_for((Path(order.folder) / "claim").exists, "claim")
        void(*args, **values)

    monkeypatch.setattr(world.agent, "_void", begin_first)
    world.engine.cancel(order.token)
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 4)


def test_an_end_by_the_engine_is_an_interruption_even_if_the_command_exits_0(world: World) -> None:
    job = world.submit("trap 'exit 0' TERM; echo up; sleep 60 & wait")
    step_until(world, lambda: has_begun(world, job), "running")
    world.engine.cancel(world.engine.orders[0].token)
    assert ends(world, job)[0] == JobState.HELD
    assert world.rig.store.attempts(job)[-1].outcome is Outcome.INTERRUPTED


def test_an_attempt_without_heartbeat_that_the_engine_has_ended_is_interrupted(world: World) -> None:
    job = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    [process] = world.engine.processes[world.engine.orders[0].token]
    os.killpg(process.pid, signal.SIGKILL)
    world.agent._scale = 6 * SCALE  # silent for two seconds is dead
    assert ends(world, job)[0] == JobState.HELD
    assert world.rig.store.attempts(job)[-1].outcome is Outcome.INTERRUPTED


def test_nothing_is_concluded_while_the_engine_is_away(world: World) -> None:
    job = world.submit("true")
    world.engine.capacity = 0
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.is_away = True
    world.step()
    late = world.submit("true", gpus=2)
    world.step()
    assert world.rig.job(job).state is JobState.STARTING
    reason = wait_reasons(world.rig.store)[world.rig.job(late).spec_key]
    assert reason.kind is WaitKind.ENGINE_UNUSABLE
    world.engine.is_away, world.engine.capacity = False, 9
    assert ends(world, job)[1] is Outcome.COMPLETED
    assert ends(world, late)[1] is Outcome.COMPLETED


def test_a_new_agent_goes_on_where_the_last_one_was_killed(world: World) -> None:
    job = world.submit("sleep 0.5; exit 5")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.agent = world.new_agent()
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 5)
    assert len(world.engine.orders) == 1


def test_a_refused_submission_is_a_failed_launch(world: World) -> None:
    world.engine.refusal = "Invalid account"
    job = world.submit("true")
    assert ends(world, job)[:2] == (JobState.FINISHED, Outcome.FAILED)
    found = world.rig.job(job).reason
    assert found is not None
    assert "Invalid account" in json.dumps(found.to_json())
    assert len(world.rig.store.attempts(job)) == 3


def test_a_log_that_reaches_its_limit_is_copied_as_it_is(world: World) -> None:
    options = replace(world.rig.store.recorded_options(), log_limit_mib=1)
    world.rig.store.record_options(options)
    world.rig.launcher._options = options
    job = world.submit("seq 400000; echo the end")
    ends(world, job)
    text = log_of(world, job)
    assert len(text) <= 2**20 + 100
    assert text.startswith("# job 1")
    assert "the end\n" in text


def test_a_preemption_that_the_runner_withdraws_is_withdrawn_here_too(world: World) -> None:
    job = world.submit("trap '' TERM; echo up; while :; do sleep 0.1; done")
    step_until(world, lambda: has_begun(world, job), "running")
    add_request(world.rig.store, "preempt", str(job), grace_s=0.2, on_timeout="withdraw", stop_id="a1")
    step_until(world, lambda: world.status(job).withdrawn is not None, "withdrawn")
    folder = world.rig.attempt_folder(job)
    assert not (folder / "stop").exists()
    world.step()
    assert not (world.shared_folder(job) / "stop").exists()
    step_until(world, lambda: world.rig.job(job).state is JobState.RUNNING, "running again")
    add_request(world.rig.store, "cancel", str(job), grace_s=0.1)
    assert ends(world, job)[1] is Outcome.CANCELLED


def test_a_cancel_that_the_runner_took_for_the_request_it_withdraws_is_in_force(world: World) -> None:
    job = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    folder = world.rig.attempt_folder(job)
    [attempt] = world.rig.store.attempts(job)
    request_stop(folder, attempt.token, StopRequest("cancelled", 5.0))
    (folder / "stop").rename(folder / "withdrawn")
    status = world.status(job)
    assert (status.stop, status.withdrawn) == (StopRequest("cancelled", 5.0), None)


def test_an_attempt_stays_in_the_folder_for_which_it_was_submitted(world: World, tmp_path: Path) -> None:
    job = world.submit(f"echo run >> {tmp_path}/runs; sleep 1; exit 6")
    step_until(world, lambda: (tmp_path / "runs").exists(), "running")
    world.shared = tmp_path / "other"
    world.shared.mkdir()
    world.agent = world.new_agent()
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 6)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_shared_folder_that_is_removed_never_runs_a_command_again(world: World, tmp_path: Path) -> None:
    job = world.submit(f"echo run >> {tmp_path}/runs; echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    shutil.rmtree(world.shared_folder(job))
    step_until(world, lambda: not world.engine._running(), "the guard has ended it")
    assert ends(world, job)[0] is JobState.HELD
    assert (tmp_path / "runs").read_text() == "run\n"
    assert len(world.engine.orders) == 1


def test_nothing_is_concluded_while_the_shared_file_system_is_away(world: World, tmp_path: Path) -> None:
    job = world.submit("sleep 1; exit 6")
    step_until(world, lambda: world.rig.job(job).state is JobState.RUNNING, "running")
    world.agent._shared.path.rename(tmp_path / "away")
    for _ in range(20):
        world.step()
    assert world.rig.job(job).state is JobState.RUNNING
    assert engine_state(world.rig.store, "slurm").problem is not None
    (tmp_path / "away").rename(world.agent._shared.path)
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 6)


def test_results_and_requests_to_stop_do_not_wait_for_the_engine(world: World) -> None:
    short = world.submit("sleep 0.3; exit 6")
    long = world.submit("trap 'exit 0' TERM; echo up; sleep 60 & wait")
    step_until(world, lambda: has_begun(world, long), "running")
    world.engine.is_away = True
    assert ends(world, short) == (JobState.FINISHED, Outcome.FAILED, 6)
    add_request(world.rig.store, "cancel", str(long))
    assert ends(world, long)[1] is Outcome.CANCELLED


def test_a_submission_that_is_refused_for_now_holds_up_no_other_attempt(world: World) -> None:
    first = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, first), "running")
    world.engine.is_full = True
    second = world.submit("true", gpus=2)
    [process] = world.engine.processes[world.engine.orders[0].token]
    os.killpg(process.pid, signal.SIGKILL)
    world.agent._scale = 6 * SCALE  # silent for two seconds is dead
    assert ends(world, first)[0] is JobState.HELD
    assert engine_state(world.rig.store, "slurm").problem is None
    waits = world.status(second).engine
    assert waits is not None
    assert waits.reason == "not submitted: QOSMaxSubmitJobPerUserLimit"


def test_a_job_cannot_stop_the_agent_with_a_pipe_in_place_of_a_file(world: World) -> None:
    job = world.submit("rm -f $GPU_SCHEDULER_PROGRESS; mkfifo $GPU_SCHEDULER_PROGRESS; sleep 0.3; exit 6")
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 6)


def test_a_launch_that_fails_before_it_is_submitted_is_given_up(world: World) -> None:
    job = world.submit("true", cwd=str(world.rig.folder))
    world.rig.launcher._conda_sh = fail_to_launch  # type: ignore[method-assign,assignment]
    assert ends(world, job)[:2] == (JobState.FINISHED, Outcome.FAILED)
    assert world.engine.orders == []


def fail_to_launch(*_: object) -> str:
    raise OSError(13, "Permission denied", "/nowhere")


def test_an_order_that_the_engine_does_not_take_now_holds_up_no_other_attempt(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = world.engine.submit

    def takes_small_orders(order: Order) -> None:
        if order.resources.gpus > 1:
            raise EngineUnavailableError("QOSMaxGRESPerUser")
        submit(order)

    monkeypatch.setattr(world.engine, "submit", takes_small_orders)
    large = world.submit("true", gpus=2)
    small = world.submit(f"while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done", gpus=1)
    step_until(world, lambda: world.rig.job(small).state is JobState.RUNNING, "running")
    assert world.rig.store.attempts(large)[-1].id < world.rig.store.attempts(small)[-1].id
    (tmp_path / "gate").touch()
    wait_for((world.shared_folder(small) / "result").exists, "result")
    world.agent._memories.clear()  # so that the large one is submitted in the next look
    world.agent.look()
    assert (world.rig.attempt_folder(small) / "result").exists()


def test_a_cancel_that_the_engine_did_not_hear_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit("trap '' TERM; echo up; sleep 60 & wait; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    cancel, calls = world.engine.cancel, []

    def fails_once(token: str) -> None:
        calls.append(token)
        if len(calls) == 1:
            raise EngineUnavailableError("the controller does not answer")
        cancel(token)

    monkeypatch.setattr(world.engine, "cancel", fails_once)
    (world.rig.attempt_folder(job) / "kill").touch()
    step_until(world, lambda: len(calls) == 2, "another cancel")


def test_a_requeued_job_whose_attempt_has_ended_is_cancelled(world: World) -> None:
    world.engine.capacity = 0
    job = world.submit("true")
    step_until(world, lambda: world.engine.orders, "submitted")
    order = world.engine.orders[0]
    process = world.engine.start(order)
    process.wait()
    world.engine.processes.clear()  # the engine lets it wait for its next start
    assert ends(world, job)[1] is Outcome.COMPLETED
    step_until(world, lambda: order.token in world.engine.cancelled, "cancelled")


def test_a_look_that_hangs_shows_no_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a file server may be as old as the request, while the heart beats on."""
    job = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    world.engine.forgotten.add(world.engine.orders[0].token)
    world.agent._scale = 12 * SCALE  # dead after a second
    read, held_up_s = agent._read, 0.0

    def hangs(path: Path) -> bytes | None:
        nonlocal held_up_s
        if path.name == "heartbeat":
            held_up_s += 1.5
        return read(path)

    monkeypatch.setattr(agent, "_ASK_S", 0.0)
    world.agent.look()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + held_up_s, time=time.time)
    monkeypatch.setattr("gpu_scheduler.engines.agent.time", clock)
    monkeypatch.setattr(agent, "_read", hangs)
    world.agent.look()
    engine = json.loads((world.rig.attempt_folder(job) / "engine").read_bytes())
    assert engine["state"] == "gone"


def test_an_agent_does_not_begin_anew_where_the_shared_file_system_is_not_mounted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the empty mount point, no attempt has begun, so those that have ended would run again."""
    store = world.rig.store
    store.record_options(replace(store.recorded_options(), slurm="gpu", slurm_dir=str(world.shared)))
    monkeypatch.setattr(start, "recorded_location", lambda _: RecordedFolder("store", "folder"))
    start.make_agent(store)
    world.shared.rename(tmp_path / "elsewhere")
    world.shared.mkdir()
    with pytest.raises(SchedulerError, match="is it mounted"):
        start.make_agent(store)
    assert not [*world.shared.iterdir()]
    world.shared.rmdir()
    (tmp_path / "elsewhere").rename(world.shared)
    start.make_agent(store)


def test_the_runner_is_not_copied_into_a_folder_that_has_just_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_runner(tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_a_full_disk_leaves_no_half_record_of_the_owner(tmp_path: Path) -> None:
    place = SharedFolder(tmp_path / "store", {"store": "a"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(SchedulerError, match="cannot be used"):
            place.claim()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    place.claim()
    with pytest.raises(SchedulerError, match="belongs to the store"):
        SharedFolder(tmp_path / "store", {"store": "b"}).claim()


def test_a_log_that_cannot_be_written_holds_up_neither_the_result_nor_other_jobs(
    world: World, tmp_path: Path
) -> None:
    job = world.submit("echo up; sleep 0.5; exit 6")
    step_until(world, lambda: has_begun(world, job), "running")
    log = Path(world.rig.store.attempts(job)[-1].log or "")
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    assert ends(world, job) == (JobState.FINISHED, Outcome.FAILED, 6)
    assert engine_state(world.rig.store, "slurm").problem is None
    assert ends(world, world.submit("exit 7")) == (JobState.FINISHED, Outcome.FAILED, 7)


def test_an_earlier_shared_folder_that_is_away_holds_up_only_its_own_attempts(
    world: World, tmp_path: Path
) -> None:
    job = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    earlier = world.shared / "store"
    earlier.rename(tmp_path / "away")
    world.shared = tmp_path / "other"
    world.shared.mkdir()
    world.agent = world.new_agent()
    assert ends(world, world.submit("exit 7")) == (JobState.FINISHED, Outcome.FAILED, 7)
    engine = world.status(job).engine
    assert engine is not None
    assert engine.reason == f"{earlier}/owner.json: No such file or directory"
    (tmp_path / "away").rename(earlier)
    add_request(world.rig.store, "cancel", str(job))
    assert ends(world, job)[1] is Outcome.CANCELLED


def test_a_folder_that_cannot_be_read_does_not_end_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.agent._shared.path / "stale").mkdir()
    exists = Path.exists

    def fails(path: Path) -> bool:
        if path.parent.name == "stale":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", fails)
    assert ends(world, world.submit("exit 6")) == (JobState.FINISHED, Outcome.FAILED, 6)


def test_no_runner_can_begin_in_a_folder_that_is_being_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []
    remove = shutil.rmtree

    def note(path: Path, **given: Any) -> None:
        found.append({one.name for one in Path(path).iterdir()})
        remove(path, **given)

    monkeypatch.setattr(shutil, "rmtree", note)
    job = world.submit("true")
    assert ends(world, job)[1] is Outcome.COMPLETED
    step_until(world, lambda: found, "removed")
    assert "command.sh" in found[0]
    assert "spec.json" not in found[0]


def test_a_damaged_result_makes_no_attempt_immortal(world: World) -> None:
    job = world.submit("echo up; sleep 60")
    step_until(world, lambda: has_begun(world, job), "running")
    [process] = world.engine.processes[world.engine.orders[0].token]
    os.killpg(process.pid, signal.SIGKILL)
    world.agent._scale = 6 * SCALE  # silent for two seconds is dead
    (world.shared_folder(job) / "result").write_text("")
    assert ends(world, job)[0] is JobState.HELD
    assert world.rig.store.attempts(job)[-1].outcome is Outcome.INTERRUPTED


def test_a_job_that_takes_long_to_end_is_not_cancelled_again_at_every_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(world.engine, "cancel", calls.append)
    monkeypatch.setattr(
        world.engine, "jobs", lambda: {"0" * 16: EngineJob("running", "7", "n1", "COMPLETING")}
    )
    (world.agent._shared.path / ("0" * 16)).mkdir()
    world.agent._scale = 1.0
    for _ in range(5):
        world.agent._jobs = None
        world.agent.look()
    assert calls == ["0" * 16]


def test_an_engine_that_takes_no_jobs_is_not_asked_again_at_every_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Order] = []

    def refuse(order: Order) -> None:
        calls.append(order)
        raise EngineUnavailableError("QOSMaxSubmitJobPerUserLimit")

    monkeypatch.setattr(world.engine, "submit", refuse)
    for _ in range(3):
        world.submit("true")
    step_until(world, lambda: calls, "submitted")
    world.agent._scale = 1.0
    for _ in range(5):
        world.step()
    assert len(calls) == 1


def test_a_waiting_job_is_cancelled_while_the_engine_is_away(world: World) -> None:
    world.engine.capacity = 0
    job = world.submit("true")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.is_away = True
    add_request(world.rig.store, "cancel", str(job))
    assert ends(world, job)[1] is Outcome.CANCELLED
    world.engine.is_away = False
    step_until(world, lambda: world.engine.cancelled, "cancelled there, too")


def test_a_restarted_agent_submits_no_job_again_at_once(world: World) -> None:
    world.engine.capacity = 0
    world.submit("true")
    step_until(world, lambda: world.engine.orders, "submitted")
    world.engine.forgotten.add(world.engine.orders[0].token)
    world.agent = world.new_agent()
    world.agent._scale = 1.0
    for _ in range(5):
        world.step()
    assert len(world.engine.orders) == 1
    world.agent._scale = SCALE
    step_until(world, lambda: len(world.engine.orders) == 2, "submitted again")


def test_a_store_that_was_moved_keeps_its_shared_folder(tmp_path: Path) -> None:
    owner = {"store": "a", "host": "here", "folder": str(tmp_path / "old")}
    SharedFolder(tmp_path / "store", owner).claim()
    SharedFolder(tmp_path / "store", {**owner, "folder": str(tmp_path)}).claim()
    with pytest.raises(SchedulerError, match=f"belongs to the store in {tmp_path} on here"):
        SharedFolder(tmp_path / "store", owner).claim()
    (tmp_path / "store/owner.json").write_text("[]")
    with pytest.raises(SchedulerError, match="write this to"):
        SharedFolder(tmp_path / "store", owner).claim()
