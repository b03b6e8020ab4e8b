"""Real schedulers list themselves, and the commands of their jobs find the queue of the job."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

from gpu_scheduler.store.scheduler_lock import running_schedulers
from tests.e2e.world import World

GS = f"{shlex.quote(sys.executable)} -m gpu_scheduler"
ROOT = Path(__file__).parents[2]


def queues() -> list[str]:
    return [state_file for state_file, _, _ in running_schedulers()]


def test_a_scheduler_is_listed_until_it_ends_in_any_way(world: World) -> None:
    mine = [str(world.folder / world.state)]
    world.start()
    assert queues() == mine
    assert world.end_scheduler() == 0
    assert queues() == []
    world.start()
    assert queues() == mine
    world.end_scheduler(signal.SIGKILL)
    assert queues() == []
    world.start()
    assert queues() == mine


def test_the_second_scheduler_says_that_another_one_runs(world: World) -> None:
    world.start()
    (world.folder / "two").mkdir()
    other = World(world.folder / "two")
    try:
        other.start()
        assert f"another queue of yours runs: {world.folder / world.state}, pid" in other.output()
        assert "another queue" not in world.output()
    finally:
        other.close()


def test_the_commands_of_a_job_find_its_queue(world: World) -> None:
    """They do so in any folder, even if that folder has a queue of its own."""
    elsewhere, data_dir = world.folder / "else where", world.folder / "data"
    elsewhere.mkdir()
    (elsewhere / "gpu_scheduler_state.d").mkdir()
    world.env |= {"PYTHONPATH": str(ROOT)}
    world.start("--data-dir", str(data_dir))
    words = f"cd {shlex.quote(str(elsewhere))} && {GS} submit --name child -- pwd"
    world.run_ok("submit", "--data-dir", str(data_dir), "--", words)
    listing = ["status", "--json", "--all", "--data-dir", str(data_dir)]
    world.run_ok("wait", "--data-dir", str(data_dir), "--job", "1")
    world.run_ok("wait", "--data-dir", str(data_dir), "--job", "2")
    assert '"child"' in world.run_ok(*listing)
    assert str(elsewhere) in world.run_ok("logs", "--data-dir", str(data_dir), "2")


def test_a_scheduler_that_a_job_starts_has_a_queue_of_its_own(world: World) -> None:
    inner = world.folder / "inner"
    inner.mkdir()
    (inner / "jobs.txt").write_text("echo inner\n")
    world.env |= {"PYTHONPATH": str(ROOT)}
    world.start()
    world.run_ok("submit", "--cwd", str(inner), "--", f"{GS} jobs.txt --simulate 1")
    world.run_ok("wait", "--job", "1")
    assert (inner / "gpu_scheduler_state.d" / "scheduler.db").exists()
    assert len(world.jobs()) == 1
