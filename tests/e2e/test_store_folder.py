"""Tests, with real schedulers, a data directory that is copied, moved, opened by another path or unlocked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

DATA_DIR = "gpu_scheduler_state.d"
#: A job that writes to a file outside the folder when it begins, at SIGTERM, and when it ends.
JOB = (
    "[share=1] trap 'echo TERM >> {0}/trace; exit 1' TERM; echo $$ >> {0}/trace;"
    " while [ ! -e {0}/go ]; do sleep 0.02; done; echo end >> {0}/trace"
)


@pytest.fixture
def original(tmp_path: Path) -> Iterator[World]:
    """Provides a world whose job 1 is running."""
    (tmp_path / "a").mkdir()
    world = World(tmp_path / "a")
    world.append(JOB.format(tmp_path))
    world.start()
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    wait_for(lambda: trace(tmp_path), "the first line of the job's trace")
    with closing(Store(DataDir.of(str(tmp_path / "a" / world.state)))) as store:
        # `status` may report a job as running before the store does.
        wait_for(
            lambda: store.db.row("SELECT 1 FROM job WHERE state = 'running'"), "the running job in the store"
        )
    yield world
    (tmp_path / "go").touch()
    world.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Provides a function that returns the world in folder b, to be called when the folder exists."""
    worlds: list[World] = []

    def there() -> World:
        worlds.append(World(tmp_path / "b"))
        return worlds[-1]

    yield there
    for world in worlds:
        world.close()


def trace(folder: Path) -> list[str]:
    path = folder / "trace"
    return path.read_text().split() if path.exists() else []


def test_a_copied_data_directory_never_signals_the_processes_of_the_original(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = beside()
    done = copy.cli("start", "--simulate", "4")
    assert done.returncode == 1
    assert f"{tmp_path}/b/{DATA_DIR} is a copy of {tmp_path}/a/{DATA_DIR}, which still exists" in done.stderr
    for words in (
        ["cancel", "1", "--grace", "0"], ["stop", "--jobs", "--grace", "0"], ["stop"], ["retry", "1"],
        ["preempt", "1"], ["submit", "--", "true"], ["pause", "0"],
    ):  # fmt: skip
        done = copy.cli(*words)
        assert done.returncode == 1, done.stdout
        assert "is a copy of" in done.stderr
    assert (
        f"Problem: store {tmp_path}/b/{DATA_DIR} is a copy of {tmp_path}/a/{DATA_DIR}"
        in copy.cli("status").stdout
    )
    [job] = copy.jobs().values()
    assert job["state"] == "running", "a refused command changes nothing"

    (tmp_path / "b" / "jobs.txt").write_text("[share=1] echo $PWD > ../here\n")
    copy.start("--fresh", "--yes")
    assert copy.wait_finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "here").read_text() == f"{tmp_path}/b\n"
    assert list(copy.jobs()) == [2]
    wait_for(lambda: [gpu["jobs"] for gpu in copy.status()["gpus"]] == [[], [], [], []], "free GPUs")
    assert copy.end_scheduler() == 0
    copy.start()  # From now on, the copy is a separate store.
    assert copy.end_scheduler() == 0

    [pid] = trace(tmp_path)
    assert original.jobs()[1]["state"] == "running"
    os.kill(int(pid), 0)
    (tmp_path / "go").touch()
    assert original.wait_finished(1)[1]["outcome"] == "completed"
    assert trace(tmp_path) == [pid, "end"]


def test_a_second_scheduler_is_refused_even_if_the_lock_file_was_removed(
    original: World, tmp_path: Path
) -> None:
    assert original.process is not None
    pid = original.process.pid
    (original.folder / DATA_DIR / "lock").unlink()
    done = original.cli("start", "--simulate", "4")
    assert done.returncode == 1
    assert (
        f"a scheduler is already running on {tmp_path}/a/gpu_scheduler_state.json (pid {pid})" in done.stderr
    )
    (original.folder / DATA_DIR / "lock").unlink(missing_ok=True)
    original.append(f"[share=1] echo second >> {tmp_path}/ran")
    assert original.wait_finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "ran").read_text() == "second\n"
    assert original.status()["scheduler"]["pid"] == pid
    original.end_scheduler(signal.SIGKILL)
    original.start()  # The first scheduler's locks ended with it.
    assert original.jobs()[1]["state"] == "running"
    assert len(trace(tmp_path)) == 1


@pytest.mark.parametrize("name", [DATA_DIR, f"{DATA_DIR}/scheduler.db"])
def test_a_scheduler_starts_no_job_after_its_folder_or_database_was_replaced(
    original: World, tmp_path: Path, name: str
) -> None:
    path = original.folder / name
    path.rename(tmp_path / "aside")
    if (tmp_path / "aside").is_dir():
        shutil.copytree(tmp_path / "aside", path)
    else:
        shutil.copyfile(tmp_path / "aside", path)
    original.append(f"[share=1] echo second >> {tmp_path}/ran")
    assert original.process is not None
    assert original.process.wait(60) == 1
    assert f"{path} was removed or replaced" in original.output()
    assert "no more jobs are started; running jobs continue" in original.output()
    assert len(trace(tmp_path)) == 1
    assert not (tmp_path / "ran").exists()
    if name != DATA_DIR:
        return
    # The copy in its place has the claim of job 1, but no process has locked that claim.
    original.start("--jobs-file", "")
    wait_for(lambda: "is alive but has no lock on the claim" in original.output(), "the anomaly")
    job = original.jobs()[1]
    assert job["state"] == "running"
    assert "is alive but has no lock on the claim in" in job["warnings"][0]
    original.end_scheduler()
    done = original.cli("cancel", "1", "--grace", "0")
    assert (done.returncode, done.stdout.split(";")[0]) == (1, "job 1: not ended yet")
    assert len(trace(tmp_path)) == 1, "the job received no signal"


def test_a_job_keeps_running_if_its_data_directory_is_renamed(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    (tmp_path / "a").rename(tmp_path / "b")
    assert original.process is not None
    assert original.process.wait(60) == 1
    moved = beside()
    moved.append("[share=1] echo $PWD > ../here")
    moved.start()
    assert moved.wait_finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "here").read_text() == f"{tmp_path}/b\n"
    assert moved.jobs()[1]["state"] == "running"
    (tmp_path / "go").touch()
    assert moved.wait_finished(1)[1]["outcome"] == "completed"
    assert trace(tmp_path)[1:] == ["end"]


def test_a_job_that_runs_while_its_folder_is_moved_by_copying_is_not_ended(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    assert original.end_scheduler() == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # `mv` does the same between file systems.
    shutil.rmtree(tmp_path / "a")
    moved = beside()
    moved.start()
    assert f"moved here from {tmp_path}/a/{DATA_DIR}" in moved.output()
    wait_for(lambda: "is alive but has no lock on the claim" in moved.output(), "the anomaly")
    assert moved.jobs()[1]["state"] == "running"
    (tmp_path / "go").touch()
    # The job's result was removed with its folder, so nobody knows how it ended.
    moved.wait_until(lambda jobs: jobs[1]["state"] == "held", "job 1 interrupted")
    assert trace(tmp_path)[1:] == ["end"]
    assert list(moved.jobs()) == [1], "its line is the same at the new path"


def test_the_same_data_directory_opened_by_another_path_does_not_count_as_a_copy(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    bound = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "--bind", str(tmp_path / "a"), str(tmp_path / "b")], check=False, capture_output=True
        ).returncode
        == 0
    )
    if not bound:
        (tmp_path / "b").rmdir()
        (tmp_path / "b").symlink_to("a")
    try:
        done = beside().cli("start", "--simulate", "4")
        assert done.returncode == 1
        assert "a scheduler is already running on" in done.stderr
        assert original.end_scheduler() == 0
        there = World(tmp_path / "b")
        there.start("--jobs-file", "")
        assert "moved here" not in there.output()
        assert there.jobs()[1]["state"] == "running"
        (tmp_path / "go").touch()
        assert there.wait_finished(1)[1]["outcome"] == "completed"
        assert there.end_scheduler() == 0
        original.start("--jobs-file", "")
        assert original.end_scheduler() == 0
    finally:
        if bound:
            subprocess.run(["umount", "-l", str(tmp_path / "b")], check=True)
