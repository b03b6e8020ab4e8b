"""A machine that goes down with the scheduler and its jobs: all processes are killed."""

from __future__ import annotations

import signal
from contextlib import closing

import pytest

from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.processes import kill_attempts
from tests.waiting import wait_for

CODE = "echo up >> {0}; until [ -e go ]; do sleep 0.02; done; echo done >> {0}"


def crash(world: World, *, reboot: bool) -> None:
    """Kills the scheduler, the runners and the jobs. reboot: whether they then belong to an earlier boot."""
    world.end_scheduler(signal.SIGKILL)
    store = Store(DataDir.of(str(world.folder / world.state)))
    folders = {row.token: store.data_dir.attempt_folder(row) for row in store.active_attempts()}
    kill_attempts(folders)
    if reboot:
        with store.db.transaction() as db:
            db.execute("UPDATE attempt SET boot_id = 'an earlier boot'")
    store.close()


def begin(world: World, *options: str) -> None:
    """Starts two jobs; the third one waits for the first."""
    for name in ("a", "b"):
        world.append(f"[name={name} share=0.5] {CODE.format(name)}")
    world.start(*options)
    world.wait_until(lambda jobs: len(jobs) == 2, "two jobs")
    spec = JobSpec("command", "child", str(world.folder), command="echo child > child")
    with closing(Store(DataDir.of(str(world.folder / world.state)))) as store:
        store.insert_job(spec, "test", dependencies=[Dependency(1, DependencyKind.COMPLETED, "1")])
    wait_for(lambda: all((world.folder / name).exists() for name in "ab"), "both jobs")
    world.wait_until(lambda jobs: [jobs[i]["state"] for i in (1, 2)] == ["running"] * 2, "both jobs running")


@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("reboot", [False, True])
def test_after_a_crash_the_status_alone_shows_what_was_interrupted_and_recover_runs_it_again(
    world: World, reboot: bool, screen: bool
) -> None:
    options = ["--screen"] if screen else []
    begin(world, *options)
    crash(world, reboot=reboot)
    text = world.run_ok("status")
    assert text.startswith("3 jobs: 1 queued, 2 held\n")
    assert text.count("interrupted") == text.count("not recorded yet") == 2
    assert [world.jobs()[job]["recorded"] for job in (1, 2)] == [False, False]
    assert world.run_ok("recover", "2") == "job 2: queued again\n"
    world.start(*options)
    world.wait_until(lambda jobs: jobs[2]["state"] == "running", "the recovered job")
    message = "1 interrupted job is held: `recover --all` queues it again\n"
    wait_for(lambda: message in world.output(), "the message")
    states = [(world.jobs()[job]["state"], world.jobs()[job]["recorded"]) for job in (1, 3)]
    assert states == [("held", True), ("queued", True)]
    assert world.run_ok("recover", "--all") == "job 1: queued again\n"
    (world.folder / "go").touch()
    jobs = world.wait_finished()
    assert {job["outcome"] for job in jobs.values()} == {"completed"}
    assert (world.folder / "a").read_text() == "up\nup\ndone\n"
    assert world.end_scheduler() == 0


def test_start_with_recover_runs_interrupted_jobs_again_and_then_their_children(world: World) -> None:
    begin(world)
    crash(world, reboot=True)
    (world.folder / "go").touch()
    world.start("--recover", "--drain")
    assert world.process is not None
    assert world.process.wait(60) == 0
    assert [(world.folder / name).read_text() for name in ("a", "b", "child")] == [
        "up\nup\ndone\n", "up\nup\ndone\n", "child\n",
    ]  # fmt: skip
    output = world.output()
    assert "recovery 1 of 3" in output
    assert "interrupted jobs are held" not in output
    assert {job["attempts"] for job in world.jobs().values()} == {1, 2}
