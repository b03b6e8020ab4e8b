"""Tests what `start` rejects with exit code 2 before it creates anything.

The message contains the option, the path and the remedy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.e2e.world import World


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--drain"], "jobs.txt: does not exist; --drain requires an existing file or jobs"),
        (["--jobs-file", "folder"], "--jobs-file folder: is not a regular file"),
        (["--jobs-file", "fifo", "--drain"], "--jobs-file fifo: is not a regular file; write the commands"),
        (["--jobs-file", "-"], "--jobs-file -: is not a regular file; write the commands to a file"),
        (["--log-dir", "file"], "--log-dir file: "),
        (["--llm-config", "none.json"], "--llm-config none.json does not exist"),
        (["--gpus", "9"], "4 GPUs found"),
        (["--gpus", "0,7"], "--gpus 0,7"),
        (["--simulate", "none"], "--simulate"),
    ],
)
def test_rejects_invalid_options(world: World, options: list[str], words: str) -> None:
    (world.folder / "folder").mkdir()
    (world.folder / "file").touch()
    os.mkfifo(world.folder / "fifo")
    done = world.cli("start", *([] if "--simulate" in options else ["--simulate", "4"]), *options)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (world.folder / "gpu_scheduler_state.d").exists()


def test_a_script_named_as_the_jobs_file_is_refused_before_anything_runs(world: World) -> None:
    (world.folder / "job.sh").write_text("cd scratch\nrm -rf *.pt\n")
    (world.folder / "jobs").write_text("cd scratch\nrm -rf *.pt\n")
    (world.folder / "x.pt").touch()
    for words, meant in (
        (["job.sh"], "submit job.sh"),
        (["start", "--jobs-file", "job.sh", "--drain"], "submit job.sh"),
        (["start", "--jobs-file", "jobs", "--drain"], "submit -- bash jobs"),
        (["start", "--jobs-file", "jobs", "--daemon"], "submit -- bash jobs"),
    ):
        done = world.cli(*words, "--simulate", "1")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"`{meant}` runs it as one job" in done.stderr
    assert world.cli("lint", "job.sh").returncode == 2
    assert sorted(path.name for path in world.folder.iterdir()) == ["job.sh", "jobs", "x.pt"]


def test_a_jobs_file_that_the_store_knows_is_never_refused(world: World) -> None:
    """Only its lines that change nothing but their own shell are malformed; the others run."""
    (world.folder / "list").write_text("touch one\n")
    assert world.cli("start", "--simulate", "1", "--drain", "--jobs-file", "list").returncode == 0
    (world.folder / "list").write_text("cd scratch\ntouch one\nset -e\ntouch two\n")
    done = world.cli("start", "--simulate", "1", "--drain", "--jobs-file", "list")
    assert (world.folder / "two").exists(), done.stderr
    assert "it only changes its own shell" in done.stdout
    assert "2 of 2 jobs completed, 2 malformed lines" in done.stdout


def test_a_drain_needs_no_jobs_file_if_jobs_were_submitted(world: World) -> None:
    assert world.cli("submit", "--", "touch", "ran").returncode == 0
    done = world.cli("start", "--simulate", "4", "--drain")
    assert (done.returncode, (world.folder / "ran").exists()) == (0, True), done.stderr
    done = world.cli("start", "--simulate", "4", "--drain", "--jobs-file", "none.txt")
    assert (done.returncode, "none.txt: does not exist" in done.stderr) == (2, True)


@pytest.mark.parametrize("state", ["folder", "folder/", "none/s.json"])
def test_rejects_an_unusable_state_file(tmp_path: Path, state: str) -> None:
    (tmp_path / "folder").mkdir()
    done = World(tmp_path, state).cli("start", "--simulate", "1")
    assert done.returncode == 2
    assert f"--state-file {state}: " in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_rejects_an_invalid_llm_config(world: World) -> None:
    (world.folder / "llm_config.json").write_text('{"models": {"a": {"vram": "9Q"}}}')
    done = world.cli("start", "--simulate", "1")
    assert done.returncode == 2
    assert "models.a" in done.stderr


def test_applies_valid_edits_of_llm_config_and_ignores_invalid_ones(world: World) -> None:
    config = world.folder / "llm_config.json"
    config.write_text('{"models": {"m": 2}}')
    world.start()
    world.append("[allowed=0] echo --llm m >> ran")
    world.wait_until(lambda jobs: 1 in jobs and "infeasible" in (jobs[1]["reason"] or ""), "infeasible")
    config.write_text("{")
    world.append("[share=1] echo other")
    world.wait_finished(2)
    assert "infeasible" in world.jobs()[1]["reason"]
    config.write_text('{"models": {"m": 0.5}}')
    world.wait_finished(1)
    assert "the last valid version remains in use" in world.output()


def test_does_not_use_a_gpu_hidden_by_cuda_visible_devices(world: World) -> None:
    world.env["CUDA_VISIBLE_DEVICES"] = "1,2"
    world.start()
    assert [gpu["index"] for gpu in world.status()["gpus"]] == [1, 2]
    assert "allows only GPUs 1, 2 of 4" in world.output()
    world.end_scheduler()
    world.env["CUDA_VISIBLE_DEVICES"] = "9"
    done = world.cli("start", "--simulate", "4")
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES=9" in done.stderr


def test_retries_a_failed_launch_after_the_wait_and_then_fails(world: World) -> None:
    world.append("0,none.py,,,", "[share=1] echo behind >> ran")
    world.start("--assign-retry-wait", "0.5", "--max-assign-attempts", "3")
    world.wait_for_lines("ran")
    job = world.wait_finished(1)[1]
    assert (job["outcome"], job["exit_code"], job["attempts"]) == ("failed", None, 3)
    assert "none.py does not exist (tried 3 times)" in job["reason"]
    assert "job 1 finished [NOT STARTED]" in world.output()
    store = Store(DataDir.of(str(world.folder / world.state)))
    begun = [row.created_at for row in store.attempts(1)]
    store.close()
    # The retry does not wait for the next sample of the GPUs, which the scheduler takes every 5 s.
    assert 0.5 <= begun[1] - begun[0] < 4
    assert 1 <= begun[2] - begun[1] < 4.9


def test_refuses_to_start_where_proc_shows_another_pid_namespace(world: World) -> None:
    """Such a scheduler would read pids of one namespace and send signals to pids of another."""
    inside = ["unshare", "-p", "-f"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespaces")
    start = [sys.executable, "-m", "gpu_scheduler", "start", "--simulate", "1", "--log-dir", "logs"]
    done = subprocess.run(
        [*inside, *start],
        cwd=world.folder,
        env=world.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "/proc does not show the processes of this container" in done.stderr
    assert not (world.folder / "gpu_scheduler_state.d").exists()
