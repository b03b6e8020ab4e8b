"""Tests files and folders that another user planted or may change, with real schedulers that run as root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

START = ("start", "--simulate", "1", "--drain", "--log-dir", "logs", "--jobs-file")


@pytest.mark.parametrize("linked", [False, True])
def test_every_command_refuses_a_store_planted_by_another_user(
    world: World, tmp_path: Path, other_uid: int, linked: bool
) -> None:
    world.folder.chmod(0o1777)
    data_dir = DataDir.of(str(world.folder / world.state))
    planted = Store(data_dir, create=True)
    planted.insert_job(JobSpec("command", "x", str(tmp_path), command=f"id -u > {tmp_path}/ran_as"), "test")
    planted.close()
    for path in (data_dir.folder, *data_dir.folder.rglob("*")):
        os.chown(path, other_uid, other_uid)
        path.chmod(0o777)
    if linked:
        data_dir.folder.rename(world.folder / "his")
        data_dir.folder.symlink_to("his")
        os.chown(data_dir.folder, other_uid, other_uid, follow_symlinks=False)
    why = "is a link" if linked else f"belongs to another user ({other_uid});"
    for words in (
        (*START, ""),
        (*START, "", "--fresh", "--yes", "--trust-files"),
        ("cancel", "1"),
        ("status",),
    ):
        done = world.cli(*words)
        assert done.returncode == 1, words
        assert f"{data_dir.folder} {why}" in done.stderr, words
    done = world.cli("doctor", "--gpu-probe", "simulated")
    assert f"{data_dir.folder} {why}" in done.stdout
    assert not (tmp_path / "ran_as").exists()
    assert not (world.folder / "gpu_scheduler.log").exists()
    data_dir.folder.unlink() if linked else shutil.rmtree(data_dir.folder)


def test_the_jobs_file_of_another_user_is_accepted_only_with_trust_files(
    world: World, other_uid: int
) -> None:
    world.append("id -u > ran_as")
    world.folder.chmod(0o1777)
    os.chown(world.jobs_file, other_uid, other_uid)
    done = world.cli(*START, "jobs.txt")
    assert (done.returncode, (world.folder / "ran_as").exists()) == (2, False)
    assert "--jobs-file jobs.txt: belongs to another user" in done.stderr
    assert "--trust-files" in done.stderr
    assert world.cli(*START, "jobs.txt", "--trust-files").returncode == 0
    assert (world.folder / "ran_as").read_text() == "0\n"


def test_status_reports_files_that_have_become_world_writable(world: World) -> None:
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
    wait_for(lambda: f"{world.jobs_file} {why}" in world.output(), "a message about the jobs file")
    wait_for(lambda: f"{config} {why}" in world.output(), "a message about llm_config.json")
    text, report = world.run_ok("status"), world.status()
    assert f"jobs.txt: {why}; `chmod o-w` it, or `start --tr" in text
    assert [(t["subject"], t["problem"]) for t in report["health_issues"]] == [("llm_config", why)]
    assert [(j["id"], j["state"]) for j in report["jobs"]] == [(1, "held")]
    assert world.output().count("is writable by its group") == 1
    world.jobs_file.write_text("[hold] touch held\ntouch mended\n")
    world.jobs_file.chmod(0o644)
    assert world.wait_finished(2)[2]["outcome"] == "completed"
    assert not (world.folder / "planted").exists()
    assert world.end_scheduler() == 0
