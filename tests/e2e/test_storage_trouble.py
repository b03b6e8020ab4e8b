"""Tests full disks, and folders that vanish or are replaced.

The scheduler must keep running, report the problem and recover.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from gpu_scheduler.health.storage import REQUIRED_BYTES
from gpu_scheduler.health.storage import find_issues as find
from gpu_scheduler.store.data_dir import DataDir
from tests.e2e.smalldisk import SmallDisk, mounted, needs_small_disk
from tests.e2e.world import World
from tests.waiting import wait_for

#: After the cause is removed, everything works again within this many seconds.
RECOVERY_S = 15.0


class SmallDiskWorld(World):
    """A world whose state file is in the folder `small`. The output of the scheduler is outside it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "small/state.json")

    @property
    def output_file(self) -> Path:
        return self.folder / "out"


@pytest.fixture
def small_disk_world(tmp_path: Path) -> SmallDiskWorld:
    """Provides a world on a small disk. The test mounts the disk, and ends the world before unmounting it."""
    return SmallDiskWorld(tmp_path)


def waiting_for(path: Path, code: int) -> str:
    """Returns a line whose job runs until a file exists."""
    return f"[share=1] echo begun; while [ ! -e {path} ]; do sleep 0.05; done; exit {code}"


def free_and_wait(world: World, disk: SmallDisk, *jobs: int) -> None:
    """Frees the disk and checks that these jobs finish within RECOVERY_S."""
    began = time.monotonic()
    disk.free()
    world.wait_finished(*jobs, timeout_s=RECOVERY_S)
    assert time.monotonic() - began < RECOVERY_S


def reported_issues(world: World) -> list[tuple[str, str, bool]]:
    """Returns the health issues that `status` shows, without their paths."""
    return [(t["subject"], t["problem"], t["blocks_starts"]) for t in world.status()["health_issues"]]


@needs_small_disk
def test_a_scheduler_survives_a_full_disk_under_the_logs(
    request: pytest.FixtureRequest, world: World, tmp_path: Path
) -> None:
    with mounted(tmp_path / "small", world) as disk:
        world.append(waiting_for(tmp_path / "go", 7))
        world.start("--log-dir", "small/logs")
        world.wait_until(lambda jobs: jobs.get(1, {}).get("state") == "running", "job 1 running")
        disk.fill()
        world.append("[share=1] echo second")
        why = f"log folder {disk.path}/logs is on a full disk: free some space there"
        world.wait_until(lambda jobs: 2 in jobs and jobs[2]["reason"] == why, "the wait reason of job 2")
        assert reported_issues(world) == [("log folder", "is on a full disk", True)]
        assert f"Problem: {why}; no new jobs start until this is resolved" in world.run_ok("status")
        (tmp_path / "go").touch()
        assert world.wait_finished(1)[1]["exit_code"] == 7
        free_and_wait(world, disk, 2)
        job = world.jobs()[2]
        assert (job["outcome"], job["attempts"]) == ("completed", 1)
        assert "second" in Path(job["log"]).read_text()
        assert reported_issues(world) == []
        assert f"log folder {disk.path}/logs can be used again" in world.output()


@needs_small_disk
def test_a_scheduler_survives_a_full_disk_under_the_store(
    request: pytest.FixtureRequest, small_disk_world: SmallDiskWorld, tmp_path: Path
) -> None:
    world = small_disk_world
    with mounted(tmp_path / "small", world) as disk:
        world.append(waiting_for(tmp_path / "go", 7))
        world.start()
        world.wait_until(lambda jobs: jobs.get(1, {}).get("state") == "running", "job 1 running")
        disk.fill()
        world.append("[share=1] echo ran >> ran")
        why = f"store {disk.path}/state.d is on a full disk: free some space there"
        wait_for(lambda: why in world.output(), "the scheduler's message about the full disk")

        def is_full() -> bool:
            disk.fill()  # also fills the space that the scheduler has freed
            return reported_issues(world) == [("store", "is on a full disk", True)]

        wait_for(is_full, "the health issue in status")
        refused = world.cli("hold", "1")
        assert (refused.returncode, refused.stderr) == (
            1, f"gpu-scheduler: {why} (database or disk is full)\n",
        )  # fmt: skip
        (tmp_path / "go").touch()
        wait_for(lambda: list(disk.path.glob("state.d/runs/1/*/result")), "the result of job 1")
        job = world.jobs()[1]
        assert (job["state"], job["outcome"], job["exit_code"]) == ("finished", "failed", 7)
        free_and_wait(world, disk, 1, 2)
        jobs = world.jobs()
        assert (jobs[1]["exit_code"], jobs[1]["recorded"], jobs[2]["outcome"]) == (7, True, "completed")
        assert (tmp_path / "ran").read_text() == "ran\n"
        assert jobs[2]["attempts"] == 1
        assert "Traceback" not in world.output()
        wait_for(is_full, "the disk is full again")
        assert world.end_scheduler() == 0
        disk.fill()
        assert why in world.cli("start", "--simulate", "1").stderr
        disk.free()
        world.start()
        assert len(world.jobs()) == 2


@needs_small_disk
def test_a_disk_with_too_little_free_space_counts_as_full(
    request: pytest.FixtureRequest, world: World, tmp_path: Path
) -> None:
    with mounted(tmp_path / "small", world) as disk:
        home = DataDir.of(str(disk.path / "state.json"))
        home.create()
        disk.fill()
        for left, problems in ((REQUIRED_BYTES // 2, ["is on a full disk"]), (4 * REQUIRED_BYTES, [])):
            disk.free(left)
            assert [trouble.problem for trouble in find(home, None)] == problems


@needs_small_disk
def test_a_scheduler_survives_a_disk_that_fills_at_any_moment(
    request: pytest.FixtureRequest, small_disk_world: SmallDiskWorld, tmp_path: Path
) -> None:
    world, chance = small_disk_world, random.Random(4)
    with mounted(tmp_path / "small", world) as disk:
        world.start("--log-dir", "small/logs")
        codes = {job: job % 5 for job in range(1, 13)}
        for job, code in codes.items():
            world.append(f"[share=0.5] echo {job} >> {tmp_path}/ran; sleep 0.0{job % 9}; exit {code}")
            if job % 2 == 0:
                time.sleep(chance.uniform(0.0, 0.15))
                disk.fill()
                time.sleep(chance.uniform(0.0, 0.4))
                disk.free()
        jobs = world.wait_finished(*codes, timeout_s=40)
        assert {job: jobs[job]["exit_code"] for job in codes} == codes
        assert sorted(map(int, (tmp_path / "ran").read_text().split())) == sorted(codes)
        assert {jobs[job]["attempts"] for job in codes} == {1}


@needs_small_disk
def test_jobs_run_while_the_state_file_cannot_be_written(
    request: pytest.FixtureRequest, small_disk_world: SmallDiskWorld, tmp_path: Path
) -> None:
    world, file = small_disk_world, tmp_path / "small" / "state.json"
    data = ("--data-dir", str(tmp_path / "data"))
    with mounted(tmp_path / "small", world) as disk:
        world.start(*data)
        wait_for(file.exists, "the state file")
        file.write_text(json.dumps({**json.loads(file.read_text()), "paused_gpus": [3]}))
        disk.fill()
        world.append("[share=1] echo ran >> ran")
        world.wait_for_lines("ran")

        def seen() -> tuple[list[int], list[str]]:
            report = json.loads(world.run_ok("status", "--json", *data))
            paused = [gpu["index"] for gpu in report["gpus"] if gpu["state"] == "paused"]
            return paused, [f"{t['subject']} {t['problem']}" for t in report["health_issues"]]

        wait_for(lambda: seen() == ([3], ["state file is on a full disk"]), "GPU 3 paused", every_s=0.1)
        disk.free()
        wait_for(
            lambda: json.loads(file.read_text())["_scheduler"]["paused_gpus"] == [3],
            "the state file is written",
        )
        assert seen() == ([3], [])
        assert world.output().count(f"{file} cannot be read or written") <= 1
        assert world.end_scheduler() == 0


def test_recreates_a_removed_log_folder_but_does_not_touch_something_put_in_its_place(
    world: World, tmp_path: Path
) -> None:
    logs, victim = tmp_path / "logs", tmp_path / "victim"
    world.start()
    world.append("[share=1] echo one")
    world.wait_finished(1)
    logs.rename(tmp_path / "gone")
    world.append("[share=1] echo two")
    assert "two" in Path(world.wait_finished(2)[2]["log"]).read_text()
    logs.rename(tmp_path / "gone too")
    victim.mkdir()
    logs.symlink_to(victim)
    world.append("[share=1] echo three")
    why = f"log folder {logs} is a link: remove it, or name a folder that you own with --log-dir"
    world.wait_until(lambda jobs: 3 in jobs and jobs[3]["reason"] == why, "the wait reason of job 3")
    assert reported_issues(world) == [("log folder", "is a link", True)]
    logs.unlink()
    jobs = world.wait_finished(3, timeout_s=RECOVERY_S)
    assert (jobs[3]["attempts"], list(victim.iterdir())) == (1, [])
    assert "three" in Path(jobs[3]["log"]).read_text()


def test_reports_a_lost_main_log_on_the_terminal(world: World, tmp_path: Path) -> None:
    log = tmp_path / "gpu_scheduler.log"
    world.start()
    log.unlink()
    log.mkdir()
    world.append("[share=1] echo one", "[share=1] echo two")
    world.wait_finished(1, 2)
    assert reported_issues(world) == [("main log", "is not a regular file", False)]
    log.rmdir()
    world.append("[share=1] echo three")
    world.wait_finished(3)
    wait_for(lambda: log.exists() and "job 3 finished [OK]" in log.read_text(), "new lines in the main log")
    said = world.output()
    assert said.count(f"the main log {log} cannot be written: Is a directory") == 1
    assert "Traceback" not in said


def test_log_lines_name_the_state_file_if_two_schedulers_share_a_main_log(
    world: World, tmp_path: Path
) -> None:
    world.start()
    other = World(tmp_path, "other.json")

    def up_lines() -> list[str]:
        lines = (tmp_path / "gpu_scheduler.log").read_text().splitlines()
        return [line.split("INFO", 1)[1].strip() for line in lines if "scheduler up" in line]

    try:
        other.start("--jobs-file", "none.txt")
        # A line is printed before it is in the file.
        wait_for(lambda: len(up_lines()) > 1, "two lines in the main log")
    finally:
        other.close()
    assert [line.split(",")[0].split("pid")[0] for line in up_lines()] == [
        "scheduler up",
        "[other.json] scheduler up",
    ]
