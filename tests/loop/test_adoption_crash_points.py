"""Kills the scheduler at every failpoint while it watches an adopted process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job import AdoptedProcess
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.store.requests import add_request
from tests.loop.crash_place import Place
from tests.processes import has_arguments
from tests.stress.harness import runner_pids
from tests.waiting import wait_for

#: Python code that waits until the file `go` exists, and then exits with 7.
WAIT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nos._exit(7)"
STEPS = [
    ("planned", 2),
    ("recorded", 2),
    ("folder made", 1),
    ("performed Start", 1),
    ("performed AttemptChanged running", 1),
    ("performed AttemptChanged running", 1),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, "direct")  # a watcher needs no terminal, whatever executor the scheduler has
    yield made
    made.end_processes()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-I", "-S", "-c", WAIT], cwd=tmp_path)
    wait_for(lambda: has_arguments(started.pid))
    yield started
    started.kill()
    started.wait()


def adopt(place: Place, pid: int) -> int:
    spec = JobSpec("command", "touch again", str(place.folder), command="touch again", gpus=1)
    adopted = AdoptedProcess(pid, ticks_of(pid) or 0, boot_id(), 1000.5, ("SIM-0",))
    return place.store.insert_job(spec, "adopt", adopted=adopted)


@pytest.mark.parametrize(("step", "nth"), STEPS)
def test_a_crash_neither_ends_the_process_nor_starts_it_again(
    place: Place, process: subprocess.Popen[bytes], step: str, nth: int
) -> None:
    job = adopt(place, process.pid)
    assert place.run(step, nth) == -signal.SIGKILL
    assert process.poll() is None
    (place.folder / "go").touch()
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert (row.outcome, row.exit_code) in {("failed", 7), ("ended", None)}
    if step != "planned" or row.outcome == "failed":
        assert {one.watched_pid for one in place.store.attempts(job)} == {process.pid}
    assert not (place.folder / "again").exists()


@pytest.mark.parametrize(
    "step", ["performed JobChanged starting", "performed AttemptChanged stopping", "performed RequestStop"]
)
def test_a_cancel_ends_the_process_whenever_the_scheduler_and_the_watcher_crash(
    place: Place, process: subprocess.Popen[bytes], step: str
) -> None:
    job = adopt(place, process.pid)
    add_request(place.store, "cancel", str(job), grace_s=60)
    assert place.run(step) == -signal.SIGKILL
    for runner in runner_pids(place.folder, "state.d"):
        os.kill(runner, signal.SIGKILL)
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row.outcome == "cancelled"
    assert process.wait() == -signal.SIGTERM


def test_the_death_of_the_watcher_is_recorded_once(place: Place, process: subprocess.Popen[bytes]) -> None:
    job = adopt(place, process.pid)
    assert place.run("performed AttemptChanged running") == -signal.SIGKILL
    [runner] = runner_pids(place.folder, "state.d")
    os.kill(runner, signal.SIGKILL)
    assert place.run("performed AttemptChanged ended") == -signal.SIGKILL
    (place.folder / "go").touch()
    place.run()
    assert len(place.store.attempts(job)) == 2
    row = place.store.job(job)
    assert row is not None
    assert row.launch_failures == 0
