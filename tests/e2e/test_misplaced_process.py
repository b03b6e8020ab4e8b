"""Tests a job that sets CUDA_VISIBLE_DEVICES itself: the scheduler reports it once and names both GPUs."""

from __future__ import annotations

import sys

from tests.e2e.world import World
from tests.waiting import wait_for


def test_reports_a_job_on_a_gpu_outside_its_allocation(world: World) -> None:
    world.append(
        f"[share=1 allowed=0] {sys.executable} -m gpu_scheduler.simjob --gpus 2 --hold 30",
        f"[share=1 allowed=1] {sys.executable} -m gpu_scheduler.simjob --hold 30",
        # When this job ends, the scheduler samples the GPUs at once.
        "[share=1 allowed=3] until grep -qs '\"2\"' $GPU_SCHEDULER_SIM/[0-9]*.json; do sleep 0.02; done",
    )
    world.start()
    world.wait_until(lambda jobs: jobs.get(1, {}).get("warnings"), "the warning")
    jobs = world.jobs()
    [warning] = jobs[1]["warnings"]
    assert warning.startswith("job 1 was given GPU 0 but uses GPU 2 (process ")
    assert jobs[2]["warnings"] == []
    for command in ("status", "show", "why"):
        assert warning in world.run_ok(command, *([] if command == "status" else ["1"]))
    world.end_scheduler()
    world.start()
    world.run_ok("cancel", "--all", "--grace", "0")
    world.wait_finished()
    wait_for(lambda: "job 1 finished [CANCELLED]" in world.output(), "the end of job 1")
    assert world.output().count("uses GPU 2") == 1
    assert warning in world.run_ok("show", "1")
