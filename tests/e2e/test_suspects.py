"""A GPU that fails every job costs a few of them at most; lines that fail everywhere put no GPU aside."""

from __future__ import annotations

from typing import Any

from tests.e2e.world import World
from tests.waiting import wait_for

JOBS = range(1, 21)
BAD = 2
_LINE = "case $CUDA_VISIBLE_DEVICES in {bad}|SIM-{bad}) {fails};; esac; sleep 0.3; : {number}"


def run(world: World, *options: str, fails: str = "exit 1", bad: object = BAD) -> dict[int, dict[str, Any]]:
    """Runs 20 jobs, which fail on the bad GPU, to their ends."""
    world.append(*(_LINE.format(bad=bad, fails=fails, number=number) for number in JOBS))
    world.start(*options, module="tests.e2e.short_waits")
    return world.wait_finished(*JOBS, timeout_s=120)


def states(world: World) -> list[str]:
    return [gpu["state"] for gpu in world.status()["gpus"]]


def test_a_gpu_that_fails_everything_costs_few_jobs_and_is_shown_as_suspect(world: World) -> None:
    jobs = run(world)
    lost = [job for job in jobs.values() if job["outcome"] != "completed"]
    assert len(lost) <= 4
    assert {tuple(job["gpus"]) for job in lost} == {(BAD,)}
    expected = ["available", "available", "suspect", "available"]
    wait_for(lambda: states(world) == expected, "the end of the claims of the runners")
    gpu = world.status()["gpus"][BAD]
    assert set(gpu["suspicion"]["jobs"]) <= {job["id"] for job in lost}
    listed = ", ".join(map(str, gpu["suspicion"]["jobs"]))
    text = f"suspect: jobs {listed} failed on it soon after their start, unlike jobs on other GPUs"
    assert text in world.run_ok("status")
    assert f"GPU {BAD} is {text}" in world.run_ok("events")
    for command in ("status", "events"):
        assert f"`resume {BAD}` uses it again at once" in " ".join(world.run_ok(command).split())
    world.run_ok("submit", "--allowed", str(BAD), "--", "true")
    wait_for(lambda: text in world.run_ok("why", "21"), "the suspicion in the output of why")
    world.end_scheduler()
    world.start()  # the suspicion survives a restart
    assert states(world)[BAD] == "suspect"
    world.run_ok("resume", str(BAD))
    assert world.wait_finished(21)[21]["outcome"] == "completed"
    wait_for(lambda: states(world)[BAD] == "available", "the end of the claim of the runner")
    assert f"GPU {BAD} resumed" in world.run_ok("events")


def test_a_retry_takes_another_gpu_so_that_none_is_lost(world: World) -> None:
    error = 'echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >&2; exit 1'
    jobs = run(world, "--fail-retries", "1", fails=error)
    assert {job["outcome"] for job in jobs.values()} == {"completed"}
    assert sum(job["attempts"] > 1 for job in jobs.values()) <= 3
    assert "RuntimeError: CUDA error" in world.status()["gpus"][BAD]["suspicion"]["error"]


def test_lines_that_fail_everywhere_put_no_gpu_aside(world: World) -> None:
    jobs = run(world, bad="*")
    assert {job["outcome"] for job in jobs.values()} == {"failed"}
    wait_for(lambda: states(world) == ["available"] * 4, "the end of the claims of the runners")
    assert "suspect" not in world.run_ok("events")
