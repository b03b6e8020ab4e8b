"""A training run that is already running is adopted, as a user does it, on simulated GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

Process = subprocess.Popen[bytes]
#: A training run that reports 8000 MiB on a simulated GPU, and its progress in its log, until `go` exists.
TRAIN = """
import os, sys, time
from gpu_scheduler.system.simulated_usage import write_usage
write_usage(os.environ["GPU_SCHEDULER_SIM"], {int(os.environ["CUDA_VISIBLE_DEVICES"]): 8000}, 90.0)
print("Step 30/100", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
print("saved", flush=True)
sys.exit(int(open("go").read()))
"""


@pytest.fixture
def training(world: World) -> Iterator[Process]:
    """Starts the training run on GPU 1, outside of any scheduler."""
    home = DataDir.of(str(world.folder / world.state))
    (world.folder / "train.py").write_text(TRAIN)
    env = {**world.env, "GPU_SCHEDULER_SIM": str(home.simulation), "CUDA_VISIBLE_DEVICES": "1"}
    home.simulation.mkdir(parents=True, mode=0o700)
    with open(world.folder / "train.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "train.py", "--max_steps", "100"], cwd=world.folder, env=env, stdout=log
        )
    wait_for(lambda: (world.folder / "train.log").read_bytes())
    yield process
    process.kill()
    process.wait()


def finish(world: World, code: int) -> None:
    (world.folder / "new").write_text(str(code))
    (world.folder / "new").rename(world.folder / "go")


def runner_of(world: World, job_id: int) -> tuple[int, int]:
    """Returns the pid of the newest runner of a job and the number of its attempt, once it is running."""
    world.wait_until(lambda jobs: jobs[job_id]["state"] == "running", f"job {job_id} running")
    with closing(Store(DataDir.of(str(world.folder / world.state)))) as store:
        runner = wait_for(lambda: store.attempts(job_id)[-1].runner, "the recorded runner")
        assert runner is not None
        return runner.pid, store.attempts(job_id)[-1].number


def adopt(world: World, training: Process) -> int:
    """Starts a scheduler that adopts the training run; returns the pid of the runner that watches it."""
    world.start()
    world.run_ok("adopt", str(training.pid))
    return runner_of(world, 1)[0]


def adopt_unwatched(world: World, training: Process) -> None:
    """Lets a scheduler adopt the training run, and kills the scheduler and the runner."""
    runner = adopt(world, training)
    world.end_scheduler(signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)


def test_a_training_run_is_adopted_and_the_next_job_waits_for_it(world: World, training: Process) -> None:
    world.start()
    world.run_ok("pause", "2,3")
    printed = world.run_ok("adopt", str(training.pid), "--name", "exp02-training")
    assert printed == (
        f"Adopted PID {training.pid} as job 1: exp02-training\n"
        f"    cmd: {sys.executable} train.py --max_steps 100\n"
        f"    cwd: {world.folder}\n"
    )
    world.run_ok("submit", "--after", "1", "--", "echo eval > eval")
    world.run_ok("submit", "--gpus", "2", "--", "true")
    runner_of(world, 1)
    jobs = world.jobs()
    assert (jobs[1]["gpus"], jobs[1]["adopted_pid"], jobs[1]["name"]) == ([1], training.pid, "exp02-training")
    text = world.run_ok("status")
    assert f"pid {training.pid}; 30%" in text
    assert "after job 1 (running)" in text
    # The GPU of the process is in use, so two GPUs are not free.
    assert jobs[3]["state"] == "queued"
    assert "Step 30/100" in world.run_ok("logs", "1")
    assert f"pid {training.pid}, which was adopted" in world.run_ok("show", "1")
    finish(world, 0)
    done = world.wait_finished(1, 2, 3)
    assert [done[i]["outcome"] for i in (1, 2, 3)] == ["completed"] * 3
    assert (world.folder / "eval").read_text() == "eval\n"
    assert (world.folder / "train.log").read_text() == "Step 30/100\nsaved\n"


def test_the_process_survives_kills_of_the_scheduler_and_of_its_watcher(
    world: World, training: Process
) -> None:
    world.start()
    world.run_ok("adopt", str(training.pid))
    numbers = []
    for _ in range(3):
        runner, number = runner_of(world, 1)
        numbers.append(number)
        world.end_scheduler(signal.SIGKILL)
        os.kill(runner, signal.SIGKILL)
        wait_for(lambda: "another runner watches the adopted process" in world.run_ok("status"), "the loss")
        world.start()
    assert numbers == [1, 2, 3]
    runner_of(world, 1)
    assert training.poll() is None
    finish(world, 7)
    job = world.wait_finished(1)[1]
    assert (job["outcome"], job["exit_code"]) == ("failed", 7)


@pytest.mark.parametrize("way", ["renamed", "replaced", "deleted"])
def test_a_rotated_log_is_followed_through_the_descriptor(world: World, training: Process, way: str) -> None:
    """The output of the process is shown, wherever its file has gone."""
    adopt(world, training)
    log = world.folder / "train.log"
    if way == "deleted":
        log.unlink()
    else:
        log.rename(world.folder / "train.log.1")
    if way == "replaced":
        log.write_text("Step 99/100 of another program\n")
    assert "Step 30/100\n" in world.run_ok("logs", "1")
    if way != "deleted":
        assert "30%" in world.run_ok("status")
        assert "30%" in world.run_ok("eta", "1")
    finish(world, 0)
    assert world.wait_finished(1)[1]["outcome"] == "completed"


def test_a_reused_pid_is_not_the_adopted_process(world: World, training: Process) -> None:
    adopt_unwatched(world, training)
    # The process has ended, and this one got its pid.
    home = DataDir.of(str(world.folder / world.state))
    with closing(Store(home)) as store, store.db.transaction() as db:
        db.execute("UPDATE attempt SET watched_ticks = 1")
        db.execute("UPDATE job SET adopted = json_set(adopted, '$.start_ticks', 1)")
    world.start()
    assert world.wait_finished(1)[1]["outcome"] == "ended"
    assert training.poll() is None


def test_without_a_scheduler_the_job_is_recorded_and_the_next_one_watches_it(
    world: World, training: Process
) -> None:
    done = world.cli("adopt", str(training.pid), "--simulate", "4")
    assert done.returncode == 0, done.stderr
    assert "no scheduler is running; the next one watches the process" in done.stderr
    assert f"process {training.pid} is not watched yet" in world.run_ok("status")
    assert f"process {training.pid} is not watched yet" in world.run_ok("why", "1")
    world.start()
    runner_of(world, 1)
    assert world.jobs()[1]["gpus"] == [1]
    world.end_scheduler()
    assert training.poll() is None


def test_stop_and_cancel_all_leave_the_process_alone_and_cancel_ends_it(
    world: World, training: Process
) -> None:
    world.start()
    world.run_ok("adopt", str(training.pid))
    runner_of(world, 1)
    assert "job 1: continues, because it was adopted; `cancel 1` ends it" in world.run_ok("cancel", "--all")
    stopped = world.run_ok("stop", "--jobs")
    assert "adopted jobs continue: job 1; `cancel JOB` ends a job" in stopped
    assert "adopted jobs continue: job 1" in world.run_ok("stop", "--jobs")
    assert training.poll() is None
    # Without a scheduler, the watcher carries out the cancel.
    assert world.run_ok("cancel", "1") == "job 1: cancelled\n"
    assert training.wait() == -signal.SIGTERM


def test_a_cancel_that_no_watcher_can_carry_out_waits_for_the_next_scheduler(
    world: World, training: Process
) -> None:
    adopt_unwatched(world, training)
    done = world.cli("cancel", "1")
    assert (done.returncode, done.stdout) == (
        1,
        "job 1: not ended yet; the next `start` ends it; see `why 1`\n",
    )
    assert training.poll() is None
    world.start()
    assert world.wait_finished(1)[1]["outcome"] == "cancelled"
    assert training.wait() == -signal.SIGTERM


def test_a_restored_store_still_knows_the_process(world: World, training: Process) -> None:
    runner = adopt(world, training)
    world.end_scheduler(signal.SIGKILL)
    home = DataDir.of(str(world.folder / world.state))
    for path in Path(home.folder).glob("*.db*"):
        path.unlink()
    for path in Path(home.folder).glob("backups/*"):
        path.unlink()
    world.start("--restore")
    assert world.jobs()[1]["adopted_pid"] == training.pid
    # After this, nobody would know the process if the job were not still adopted.
    os.kill(runner, signal.SIGKILL)
    world.wait_until(lambda jobs: jobs[1]["attempts"] == 2, "another watcher")
    finish(world, 0)
    assert world.wait_finished(1)[1]["outcome"] == "completed"


def test_a_preemption_whose_watcher_dies_is_carried_out_by_the_next_one(
    world: World, training: Process
) -> None:
    runner = adopt(world, training)
    os.kill(runner, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(world.cli, "preempt", "1", "--force")
        world.wait_until(lambda jobs: jobs[1]["state"] == "stopping", "the preemption")
        os.kill(runner, signal.SIGKILL)
        done = asked.result()
    assert (done.returncode, "job 1 preempted" in done.stdout) == (0, True), done.stdout + done.stderr
    assert training.wait() == -signal.SIGTERM


def test_the_next_scheduler_preempts_a_process_that_nothing_watches(world: World, training: Process) -> None:
    adopt_unwatched(world, training)
    assert "1" in world.run_ok("eta").splitlines()[1].split()
    done = world.cli("preempt", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "job 1 has not ended; the request takes effect when the scheduler starts" in done.stderr
    assert training.poll() is None
    world.start()
    world.wait_until(lambda jobs: jobs[1]["state"] == "held", "the preemption")
    assert training.wait() == -signal.SIGTERM
