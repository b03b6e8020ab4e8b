"""A sweep of real jobs: no more of them run than may run, and commands treat them as a group."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.world import World

SWEEP = ("submit", "--share", "0.1", "--grid", "n=1..8", "--name", "sweep", "--max-running", "3", "--")
#: Notes the names of the jobs that run at the same time, and ends once the file `go` exists.
SCRIPT = "touch {n}.runs; ls *.runs | wc -l >> counts; until [ -e go ]; do sleep 0.02; done; rm {n}.runs"


def counts(folder: Path) -> list[int]:
    path = folder / "counts"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_sweep_is_limited_cancelled_retried_and_waited_for_as_a_group(world: World) -> None:
    world.start()
    world.run_ok(*SWEEP, SCRIPT)
    world.wait_until(lambda jobs: len(counts(world.folder)) == 3, "three jobs run")
    assert "5 jobs wait, 3 of 3 jobs of group sweep are running: 4-8" in world.run_ok("status", "sweep")
    world.run_ok("cancel", "sweep")
    world.wait_until(lambda jobs: {job["outcome"] for job in jobs.values()} == {"cancelled"}, "all cancelled")
    for path in world.folder.glob("*.runs"):
        path.unlink()
    (world.folder / "go").touch()
    world.run_ok("retry", "sweep")
    world.run_ok("wait", "--job", "sweep")
    assert max(counts(world.folder)) == 3
    assert len(counts(world.folder)) == 11
