"""Files and folders that another user has planted, or may change, under real schedulers of root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

START = ("start", "--simulate", "1", "--drain", "--log-dir", "logs", "--jobs-file")


@pytest.mark.parametrize("linked", [False, True])
def test_no_command_goes_on_with_a_record_that_another_user_has_planted(
    world: World, tmp_path: Path, stranger: int, linked: bool
) -> None:
    world.folder.chmod(0o1777)
    home = Home.of(str(world.folder / world.state))
    planted = Store(home, create=True)
    planted.insert_job(JobSpec("command", "x", str(tmp_path), command=f"id -u > {tmp_path}/ran_as"), "test")
    planted.close()
    for path in (home.folder, *home.folder.rglob("*")):
        os.chown(path, stranger, stranger)
        path.chmod(0o777)
    if linked:
        home.folder.rename(world.folder / "his")
        home.folder.symlink_to("his")
        os.chown(home.folder, stranger, stranger, follow_symlinks=False)
    why = "is a link" if linked else f"is the record of user {stranger}, not yours"
    for words in (
        (*START, ""),
        (*START, "", "--fresh", "--yes", "--trust-files"),
        ("cancel", "1"),
        ("status",),
    ):
        said = world.cli(*words)
        assert said.returncode == 1, words
        assert f"{home.folder} {why}" in said.stderr, words
    said = world.cli("doctor", "--gpu-probe", "simulated")
    assert f"{home.folder} {why}" in said.stdout
    assert not (tmp_path / "ran_as").exists()
    assert not (world.folder / "gpu_scheduler.log").exists()
    home.folder.unlink() if linked else shutil.rmtree(home.folder)


def test_the_jobs_file_of_another_user_runs_with_trust_files_only(world: World, stranger: int) -> None:
    world.append("id -u > ran_as")
    world.folder.chmod(0o1777)
    os.chown(world.jobs_file, stranger, stranger)
    said = world.cli(*START, "jobs.txt")
    assert (said.returncode, (world.folder / "ran_as").exists()) == (2, False)
    assert "--jobs-file jobs.txt: belongs to another user" in said.stderr
    assert "--trust-files" in said.stderr
    assert world.cli(*START, "jobs.txt", "--trust-files").returncode == 0
    assert (world.folder / "ran_as").read_text() == "0\n"


def test_status_tells_why_files_that_everybody_may_write_by_now_are_not_read(world: World) -> None:
    config = world.folder / "llm_config.json"
    config.write_text('{"models": {}}')
    world.append("[hold] touch held")
    world.jobs_file.chmod(0o664)
    world.start("--monitor-interval", "0.1", "--state-interval", "0.1")
    wait_for(world.jobs, "job 1")
    for path in (world.jobs_file, config):
        path.chmod(0o666)
    world.jobs_file.write_text("touch planted\n")
    why = "is writable by everyone"
    wait_for(lambda: f"{world.jobs_file}: {why}" in world.said(), "what is said of the jobs file")
    wait_for(lambda: f"{config}: {why}" in world.said(), "what is said of llm_config.json")
    text, report = world.ok("status"), world.status()
    assert f"jobs.txt: {why}; `chmod o-w` it, or `start --tr" in text
    assert [(t["subject"], t["problem"]) for t in report["health_issues"]] == [("llm_config", why)]
    assert [(j["id"], j["state"]) for j in report["jobs"]] == [(1, "held")]
    assert world.said().count("is writable by its group") == 1
    world.jobs_file.write_text("[hold] touch held\ntouch mended\n")
    world.jobs_file.chmod(0o644)
    assert world.finished(2)[2]["outcome"] == "completed"
    assert not (world.folder / "planted").exists()
    assert world.end() == 0
