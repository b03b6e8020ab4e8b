"""Tests a database that was removed while no scheduler ran.

`start` refuses to run until it is told to restore the store. After that, every line runs exactly once.
"""

from __future__ import annotations

import signal
from pathlib import Path

from gpu_scheduler.store.data_dir import DataDir
from tests.e2e.world import World
from tests.waiting import wait_for

JOB = "[share=1] echo start{0} >> trace; while [ ! -e go ]; do sleep 0.02; done; echo end{0} >> trace"


def test_the_lines_of_a_lost_store_run_only_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    data_dir = DataDir.of(str(tmp_path / world.state))
    try:
        world.append(*(JOB.format(number) for number in (1, 2, 3)))
        world.start()
        world.wait_for_lines("trace", 3)
        wait_for(lambda: len(list(data_dir.runs.glob("*/*/claim"))) == 3, "three claims")
        world.end_scheduler(signal.SIGKILL)
        for path in data_dir.folder.glob("scheduler.db*"):
            path.unlink()
        world.append("[share=1] echo start4 >> trace; echo end4 >> trace")

        done = world.cli("start", "--simulate", "4", "--log-dir", "logs")
        assert done.returncode == 1
        assert f"3 attempt folders in {data_dir.runs} are missing from the store: " in done.stderr
        assert f": {data_dir.database} is missing" in done.stderr
        assert "jobs 1-3 are still running (pids " in done.stderr
        assert "`start --restore` continues from" in done.stderr
        done = world.cli("start", "--fresh", "--yes", "--simulate", "4", "--log-dir", "logs")
        assert (done.returncode, "jobs 1, 2, 3 are active; --fresh forgets nothing" in done.stderr) == (
            1,
            True,
        )
        for words in (["status"], ["status", "--json"], ["logs", "1"], ["cancel", "1"]):
            done = world.cli(*words)
            assert (done.returncode, done.stdout) == (1, ""), words
            assert f"the store in {data_dir.folder} was lost" in done.stderr

        world.start("--restore")
        assert world.wait_finished(4)[4]["outcome"] == "completed"
        jobs = world.jobs()
        assert [(jobs[number]["state"], jobs[number]["gpus"]) for number in (1, 2, 3)] == [
            ("running", [number - 1]) for number in (1, 2, 3)
        ]
        (tmp_path / "go").touch()
        assert {job["outcome"] for job in world.wait_finished(1, 2, 3, 4).values()} == {"completed"}
        every = [f"{word}{number}" for word in ("end", "start") for number in (1, 2, 3, 4)]
        assert sorted((tmp_path / "trace").read_text().split()) == every
    finally:
        (tmp_path / "go").touch()
        world.close()
