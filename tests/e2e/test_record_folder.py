"""The folder of a record under real schedulers: copied, moved, reached by another path, its lock removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

RECORD = "gpu_scheduler_state.d"
#: Writes into a file that no copy of the folder has when it begins, gets SIGTERM, and ends.
JOB = (
    "[share=1] trap 'echo TERM >> {0}/trace; exit 1' TERM; echo $$ >> {0}/trace;"
    " while [ ! -e {0}/go ]; do sleep 0.02; done; echo end >> {0}/trace"
)


@pytest.fixture
def original(tmp_path: Path) -> Iterator[World]:
    """A world with job 1, which runs."""
    (tmp_path / "a").mkdir()
    world = World(tmp_path / "a")
    world.append(JOB.format(tmp_path))
    world.start()
    world.until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    wait_for(lambda: trace(tmp_path), "its first word")
    with closing(Store(Home.of(str(tmp_path / "a" / world.state)))) as store:
        # Readers say so as soon as the runner does.
        wait_for(lambda: store.db.row("SELECT 1 FROM job WHERE state = 'running'"), "that on the record")
    yield world
    (tmp_path / "go").touch()
    world.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """The world in the folder b, once that is made."""
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


def test_a_copy_signals_nothing_of_the_original(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = beside()
    said = copy.cli("start", "--simulate", "4")
    assert said.returncode == 1
    assert f"{tmp_path}/b/{RECORD} is a copy of {tmp_path}/a/{RECORD}, which is still there" in said.stderr
    for words in (["cancel", "1", "--grace", "0"], ["stop", "--jobs", "--grace", "0"]):
        said = copy.cli(*words)
        assert said.returncode == 1, said.stdout
        assert "is a copy of" in said.stderr
    assert (
        f"Problem: record {tmp_path}/b/{RECORD} is a copy of {tmp_path}/a/{RECORD}"
        in copy.cli("status").stdout
    )
    assert f"job 1; this record is a copy of {tmp_path}/a/{RECORD}, to which" in copy.cli("stop").stdout

    copy.append("[share=1] echo $PWD > ../here")
    copy.start("--as-copy")
    assert copy.finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "here").read_text() == f"{tmp_path}/b\n"
    [job] = [job for job in copy.jobs().values() if job["id"] != 2]
    assert (job["state"], job["outcome"]) == ("held", None), "a refused command leaves nothing"
    assert f"belongs to {tmp_path}/a/{RECORD}" in job["reason"]
    assert [gpu["jobs"] for gpu in copy.status()["gpus"]] == [[], [], [], []]
    assert copy.end() == 0
    copy.start()  # a record of its own by now
    assert copy.end() == 0

    shutil.copytree(tmp_path / "a", tmp_path / "c")
    third = World(tmp_path / "c")
    third.start("--fresh", "--yes", "--jobs-file", "")
    assert third.jobs() == {}
    assert third.end() == 0
    third.close()

    [pid] = trace(tmp_path)
    assert original.jobs()[1]["state"] == "running"
    os.kill(int(pid), 0)
    (tmp_path / "go").touch()
    assert original.finished(1)[1]["outcome"] == "completed"
    assert trace(tmp_path) == [pid, "end"]


def test_a_removed_lock_lets_no_second_scheduler_in(original: World, tmp_path: Path) -> None:
    assert original.process is not None
    pid = original.process.pid
    (original.folder / RECORD / "lock").unlink()
    said = original.cli("start", "--simulate", "4")
    assert said.returncode == 1
    assert (
        f"a scheduler is already running on {tmp_path}/a/gpu_scheduler_state.json (pid {pid})" in said.stderr
    )
    (original.folder / RECORD / "lock").unlink(missing_ok=True)
    original.append(f"[share=1] echo second >> {tmp_path}/ran")
    assert original.finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "ran").read_text() == "second\n"
    assert original.status()["scheduler"]["pid"] == pid
    original.end(signal.SIGKILL)
    original.start()  # the locks have died with it
    assert original.jobs()[1]["state"] == "running"
    assert len(trace(tmp_path)) == 1


@pytest.mark.parametrize("name", [RECORD, f"{RECORD}/scheduler.db"])
def test_a_scheduler_whose_folder_or_database_is_replaced_starts_nothing_more(
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
    assert f"{path} was removed or replaced" in original.said()
    assert "no more jobs are started; running jobs continue" in original.said()
    assert len(trace(tmp_path)) == 1
    assert not (tmp_path / "ran").exists()
    if name != RECORD:
        return
    # The copy in its place has the claim of job 1 without its lock.
    original.start("--jobs-file", "")
    wait_for(lambda: "is alive but does not hold the claim" in original.said(), "the anomaly")
    job = original.jobs()[1]
    assert job["state"] == "running"
    assert "is alive but does not hold the claim in" in job["warnings"][0]
    original.end()
    said = original.cli("cancel", "1", "--grace", "0")
    assert (said.returncode, said.stdout.split(":")[1]) == (1, " not ended")
    assert len(trace(tmp_path)) == 1, "no signal came"


def test_a_renamed_folder_keeps_its_running_job(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    (tmp_path / "a").rename(tmp_path / "b")
    assert original.process is not None
    assert original.process.wait(60) == 1
    moved = beside()
    moved.append("[share=1] echo $PWD > ../here")
    moved.start()
    assert moved.finished(2)[2]["outcome"] == "completed"
    assert (tmp_path / "here").read_text() == f"{tmp_path}/b\n"
    assert moved.jobs()[1]["state"] == "running"
    (tmp_path / "go").touch()
    assert moved.finished(1)[1]["outcome"] == "completed"
    assert trace(tmp_path)[1:] == ["end"]


def test_a_job_that_runs_while_its_folder_is_copied_and_removed_is_not_ended(
    original: World, beside: Callable[[], World], tmp_path: Path
) -> None:
    assert original.end() == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # as `mv` does between file systems
    shutil.rmtree(tmp_path / "a")
    moved = beside()
    moved.start()
    assert f"moved here from {tmp_path}/a/{RECORD}, which is gone" in moved.said()
    wait_for(lambda: "is alive but does not hold the claim" in moved.said(), "the anomaly")
    assert moved.jobs()[1]["state"] == "running"
    (tmp_path / "go").touch()
    # Its result went with its folder: nothing tells how it ended.
    moved.until(lambda jobs: jobs[1]["state"] == "held", "job 1 interrupted")
    assert trace(tmp_path)[1:] == ["end"]
    assert list(moved.jobs()) == [1], "its line is the same in the new place"


def test_the_same_folder_by_another_path_is_no_copy(
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
        said = beside().cli("start", "--simulate", "4")
        assert said.returncode == 1
        assert "a scheduler is already running on" in said.stderr
        assert original.end() == 0
        there = World(tmp_path / "b")
        there.start("--jobs-file", "")
        assert "moved here" not in there.said()
        assert there.jobs()[1]["state"] == "running"
        (tmp_path / "go").touch()
        assert there.finished(1)[1]["outcome"] == "completed"
        assert there.end() == 0
        original.start("--jobs-file", "")
        assert original.end() == 0
    finally:
        if bound:
            subprocess.run(["umount", "-l", str(tmp_path / "b")], check=True)
