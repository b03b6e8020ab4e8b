"""GPU claims of a real scheduler, its jobs and other programs, on simulated GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.gpu_claims import read_gpu_locks
from gpu_scheduler.system.lock_folder import ClaimFolder
from tests.claim_holder import claim_holder, holder_words
from tests.e2e.world import World
from tests.waiting import wait_for

#: Holds its GPU until the file `go` exists.
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
START = [sys.executable, "-m", "gpu_scheduler", "start", "--log-dir", "logs"]
#: Claims so many MiB of SIM-0, or the whole GPU for 0, and executes the command in its arguments.
CLAIM_AND_EXECUTE = """
import os, sys
from gpu_scheduler.runner.locks import Wanted, claim_gpus
wanted = Wanted("SIM-0", int(sys.argv[2]) or None, 24576)
assert isinstance(claim_gpus(sys.argv[1], [wanted], inheritable=True), list)
os.execv(sys.argv[3], sys.argv[3:])
"""
#: Executes the command in its arguments in a child.
BELOW = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]


def locks_of(world: World) -> Path:
    """Returns the folder with the lock files of the simulated GPUs, and makes it if it is missing."""
    simulation = DataDir.of(str(world.folder / world.state)).simulation
    folder = ClaimFolder.of(Path(world.env["GPU_SCHEDULER_LOCK_DIR"]), str(simulation))
    folder.prepare()
    return folder.path


def claiming(world: World, mib: int = 0) -> list[str]:
    """Returns the words that claim so many MiB of SIM-0, or the whole GPU for 0, before a command."""
    return [sys.executable, "-c", CLAIM_AND_EXECUTE, str(locks_of(world)), str(mib)]


def pids_on(world: World, gpu: int) -> list[int]:
    """Returns the processes that claim a GPU."""
    return [lock.pid for lock in read_gpu_locks(locks_of(world), f"SIM-{gpu}")]


def test_a_job_waits_for_another_program_and_starts_when_that_program_is_killed(world: World) -> None:
    with claim_holder(locks_of(world), "SIM-0") as process:
        # Only the end of the other program wakes the scheduler.
        world.start("--simulate", "1", "--poll", "3600")
        world.append("touch ran")
        words = f"claimed by {holder_words(process.pid)}"
        world.wait_until(lambda jobs: jobs and words in (jobs[1]["reason"] or ""), "the wait reason")
        assert f"does not accept the job: {words};" in world.run_ok("why", "1")
        assert f"     {words}\n" in world.run_ok("status")
        [gpu] = world.status()["gpus"]
        assert (gpu["state"], [claim["pid"] for claim in gpu["claims"]]) == ("claimed", [process.pid])
        process.kill()
        world.wait_finished(1)
    assert world.jobs()[1]["outcome"] == "completed"
    assert world.status()["gpus"][0]["claims"] == []


def test_a_killed_scheduler_leaves_the_claims_of_its_jobs_and_its_successor_knows_them(world: World) -> None:
    world.start("--simulate", "1")
    world.append(f"[share=0.5] {UNTIL_GO}")
    world.wait_until(lambda jobs: jobs and jobs[1]["state"] == "running", "the first job")
    [runner] = wait_for(lambda: pids_on(world, 0), "the claim of the first job")
    world.end_scheduler(signal.SIGKILL)
    assert pids_on(world, 0) == [runner]
    assert world.status()["gpus"][0]["claims"] == []
    world.start("--simulate", "1")
    world.append("[share=0.5] true")
    world.wait_finished(2)
    assert pids_on(world, 0) == [runner]
    assert world.status()["gpus"][0]["claims"] == []
    (world.folder / "go").touch()
    world.wait_finished(1)
    assert pids_on(world, 0) == []


def test_jobs_run_on_the_gpu_that_the_ancestor_of_their_scheduler_claims(world: World) -> None:
    claim = claiming(world)
    start = [*START, "--simulate", "1", "--drain"]
    for below in ([], BELOW):
        world.append(f"touch ran{len(below)}")
        options = ["--state-file", world.state, "--jobs-file", str(world.jobs_file)]
        done = subprocess.run(
            [*claim, *below, *start, *options],
            cwd=world.folder, env=world.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert (world.folder / f"ran{len(below)}").exists()


def test_a_scheduler_that_run_executes_keeps_its_claim(world: World) -> None:
    start = [*START, "--simulate", "2", "--state-file", world.state]
    with subprocess.Popen(
        [*claiming(world), *start],
        cwd=world.folder, env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            world.append(*(f"[allowed={gpu}] {UNTIL_GO}" for gpu in (0, 1)))
            wait_for(lambda: world.cli("status", "--json").returncode == 0, "the store")
            both = ["running", "running"]
            world.wait_until(lambda jobs: [one["state"] for one in jobs.values()] == both, "the jobs")
            wait_for(lambda: pids_on(world, 1), "the claim of the second job")
            assert pids_on(world, 0) == [process.pid]
            assert [gpu["claims"] for gpu in world.status()["gpus"]] == [[], []]
            (world.folder / "go").touch()
            world.wait_finished(1, 2)
            assert pids_on(world, 0) == [process.pid]
        finally:
            process.terminate()


@pytest.mark.parametrize("below", [[], BELOW])
def test_a_claim_on_part_of_a_gpu_is_not_for_the_jobs_of_a_scheduler_below(
    world: World, below: list[str]
) -> None:
    start = [*START, "--simulate", "1", "--state-file", world.state]
    with subprocess.Popen(
        [*claiming(world, 16_000), *below, *start],
        cwd=world.folder, env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            world.append("[share=0.5] true", "[vram=8000] true")
            wait_for(lambda: world.cli("status", "--json").returncode == 0, "the store")
            world.wait_finished(2)
            # Until the memory of job 2 is released, that is the reason.
            claimed = f"16000 MiB claimed by {holder_words(process.pid)}"
            world.wait_until(lambda jobs: claimed in (jobs[1]["reason"] or ""), "the reason of job 1")
            assert world.jobs()[1]["state"] == "queued"
            assert pids_on(world, 0) == [process.pid]
        finally:
            world.cli("stop")
            process.terminate()


def test_start_in_the_background_is_refused_if_run_executed_it(world: World) -> None:
    done = subprocess.run(
        [*claiming(world), *START, "--daemon", "--simulate", "1", "--state-file", world.state],
        cwd=world.folder, env=world.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "use `run -- ... start` without --daemon" in done.stderr
    assert not (world.folder / "gpu_scheduler_state.d").exists()
    assert not (world.folder / "logs").exists()


def test_a_start_with_another_lock_folder_warns_while_jobs_run(world: World) -> None:
    world.start("--simulate", "1")
    world.append(UNTIL_GO)
    world.wait_until(lambda jobs: jobs and jobs[1]["state"] == "running", "the job")
    world.end_scheduler()
    before = locks_of(world)
    world.env["GPU_SCHEDULER_LOCK_DIR"] += "/other"
    world.start("--simulate", "1")
    warning = (
        f"the lock folder has changed from {before} to {locks_of(world)}; `run` does not see the claims of"
        " running jobs (1) until they end\n"
    )
    assert world.output().count(warning) == 1
    (world.folder / "go").touch()
    world.wait_until(lambda jobs: jobs[1]["outcome"] and jobs[1]["recorded"], "the recorded end of the job")
    world.env["GPU_SCHEDULER_LOCK_DIR"] = os.path.dirname(world.env["GPU_SCHEDULER_LOCK_DIR"])
    world.end_scheduler()
    world.start("--simulate", "1")
    assert world.output().count("the lock folder has changed") == 1


def test_start_refuses_a_lock_folder_that_is_not_safe(world: World) -> None:
    world.env["GPU_SCHEDULER_LOCK_DIR"] = str(world.folder / "locks")
    done = world.cli("start", "--simulate", "1")
    assert done.returncode == 2
    assert f"is in {gettempdir()}, which the system empties" in done.stderr
    assert "set GPU_SCHEDULER_LOCK_DIR to a folder on a local disk" in done.stderr
    assert not (world.folder / "gpu_scheduler_state.d").exists()
