"""Real jobs without a GPU: two at a time, beside paused GPUs, across a crash of the scheduler."""

from __future__ import annotations

from tests.e2e.world import World

#: Notes what the job sees and how many such jobs run, and ends once the file `go` exists.
SCRIPT = (
    'echo "[$CUDA_VISIBLE_DEVICES]"; touch {n}.runs; ls *.runs | wc -l >> counts;'
    " until [ -e go ]; do sleep 0.02; done; rm {n}.runs"
)


def test_jobs_without_a_gpu_run_two_at_a_time_and_survive_the_scheduler(world: World) -> None:
    world.start("--cpu-jobs", "2")
    world.run_ok("pause", "0-3")
    world.run_ok("submit", "--gpus", "0", "--grid", "n=1..4", "--name", "prep", "--", SCRIPT)
    world.run_ok("submit", "--gpus", "1", "--after", "prep", "--", "true")
    world.wait_until(lambda jobs: len(list(world.folder.glob("*.runs"))) == 2, "two jobs run")
    text = world.run_ok("status")
    assert "2 jobs wait, 2 of 2 jobs without a GPU are running: 3, 4" in text
    assert "  1  running  -  " in text
    assert [job["gpus"] for job in world.jobs().values()] == [[]] * 5
    assert "2 of 2 jobs without a GPU are running (start --cpu-jobs)" in world.run_ok("why", "4")
    assert "runs                  without a GPU" in world.run_ok("why", "1")
    world.end_scheduler(9)
    # The same scheduler, which now manages no GPU at all.
    world.start("--cpu-jobs", "2", "--gpus", "none")
    (world.folder / "go").touch()
    jobs = world.wait_finished(1, 2, 3, 4)
    assert [(jobs[n]["outcome"], jobs[n]["attempts"]) for n in range(1, 5)] == [("completed", 1)] * 4
    assert max(map(int, (world.folder / "counts").read_text().split())) == 2
    for n in range(1, 5):
        log = world.run_ok("logs", str(n))
        assert "# GPUs: none; started" in log
        assert "\n[]\n" in log
    world.wait_until(lambda jobs: jobs[5]["infeasible"], "job 5 finds no GPU")
    assert "needs 1 idle GPU, but none is managed" in world.run_ok("status")
    # A lost store is restored from the folders of these attempts, too.
    world.end_scheduler()
    for path in (world.folder / "gpu_scheduler_state.d").glob("scheduler.db*"):
        path.unlink()
    world.start("--restore", "--gpus", "none")
    assert {world.jobs()[n]["outcome"] for n in range(1, 5)} == {"completed"}
