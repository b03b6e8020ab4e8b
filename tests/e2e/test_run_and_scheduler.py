"""`run` and a real scheduler on the same simulated GPUs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.world import World
from tests.waiting import wait_for

#: Holds its GPU until the file `go` exists.
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
PROGRAM = [sys.executable, "-m", "gpu_scheduler"]


def run_words(world: World, *words: str) -> list[str]:
    """Returns the words of a `run` on the scheduler's two GPUs. words: its options and its command."""
    return [*PROGRAM, "run", "--simulate", "2", "--state-file", str(world.folder / world.state), *words]


@contextmanager
def started(world: World, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yields a `run` that was started. words: its options and its command."""
    with subprocess.Popen(
        run_words(world, *words),
        cwd=world.folder, env=world.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def wait_for_state(world: World, job: int, state: str) -> None:
    world.wait_until(lambda jobs: job in jobs and jobs[job]["state"] == state, f"job {job} {state}")


def test_run_takes_no_gpu_of_a_job_even_after_the_scheduler_was_killed(world: World) -> None:
    world.start("--simulate", "2")
    world.append(f"[allowed=0] {UNTIL_GO}")
    wait_for_state(world, 1, "running")
    world.end_scheduler(signal.SIGKILL)
    show = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    with started(world, *show) as process:
        assert process.communicate(timeout=60)[0] == "1\n"
    with started(world, "--only", "0", "--poll", "3600", *show) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("waiting for a free GPU ...\n")
        assert f"GPU 0 is claimed by job 1 of {world.folder}, pid " in process.stderr.readline()
        (world.folder / "go").touch()
        assert process.communicate(timeout=60)[0] == "0\n"


def test_a_job_waits_for_the_gpu_of_run_and_starts_when_its_command_is_killed(world: World) -> None:
    # Only the end of the command wakes the scheduler.
    world.start("--simulate", "2", "--poll", "3600")
    with started(world, "--only", "0", "--", "sh", "-c", f"echo ready; {UNTIL_GO}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        world.append("[allowed=0] true")
        reason = f"claimed by run, pid {process.pid}, user "
        world.wait_until(lambda jobs: jobs and reason in (jobs[1]["reason"] or ""), "the wait reason")
        process.kill()
        assert world.wait_finished(1)[1]["outcome"] == "completed"


def test_jobs_with_vram_share_a_gpu_with_run(world: World) -> None:
    world.start("--simulate", "2")
    with started(
        world, "--only", "0", "--mb", "10000", "--", "sh", "-c", f"echo ready; {UNTIL_GO}"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        world.append(
            "[allowed=0 vram=15G] true", f"[allowed=0 vram=8000] {UNTIL_GO}", "[allowed=0 vram=8000] true"
        )
        wait_for_state(world, 2, "running")
        jobs = world.jobs()
        assert (jobs[1]["state"], jobs[3]["state"]) == ("queued", "queued")
        assert "10000 MiB claimed by run" in jobs[1]["reason"]
        (world.folder / "go").touch()
        world.wait_finished(1, 2, 3)


def test_run_inside_a_job_uses_the_gpu_of_the_job_without_another_claim(world: World) -> None:
    world.start("--simulate", "2")
    inner = " ".join(run_words(world, "--", "sh", "-c", "'echo got $CUDA_VISIBLE_DEVICES'"))
    too_many = " ".join(run_words(world, "-n", "2", "--", "true"))
    world.append(f"[allowed=1 name=inner] {inner}", f"[allowed=1 name=many] {too_many}")
    jobs = world.wait_finished(1, 2)
    assert jobs[1]["outcome"] == "completed"
    log = wait_for(lambda: world.run_ok("logs", "inner"), "the log")
    assert "got 1\n" in log
    assert "using GPU 1 (" in log
    assert jobs[2]["exit_code"] == 3
