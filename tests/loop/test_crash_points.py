"""The scheduler dies at every named step; what the jobs wrote tells what happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.runner.protocol import processes_of, sweep
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store
from tests.stress.harness import environment, runner_pids
from tests.stress.trace import JOB, judge
from tests.waiting import wait_for
from tests.warm import Process

EXECUTORS = ["direct", "screen"]


@dataclass
class Place:
    """A folder with a record, and schedulers that are run in it."""

    folder: Path
    executor: str

    def __post_init__(self) -> None:
        self.store = Store(Home.of(str(self.folder / "state.json")), create=True)
        (self.folder / "trace.sh").write_text(JOB)
        self.codes: dict[int, int] = {}

    def add(self, code: int, seconds: float = 0.02) -> int:
        """A job that writes its trace and exits with this code."""
        number = len(self.codes)
        command = f"sh {self.folder}/trace.sh {self.folder}/trace {number} {seconds} {code}"
        self.codes[number] = code
        return self.insert(command)

    def insert(self, command: str) -> int:
        """A job that runs a shell command."""
        return self.store.insert_job(
            JobSpec("command", command, str(self.folder), command=command, share=500), "test"
        )

    def run(self, step: str = "", nth: int = 1, *more: str) -> int:
        """A scheduler that dies at the nth time at this step, or drains; its exit code."""
        with open(self.folder / "out", "ab") as out:
            words = [step, str(nth), self.executor, *more]
            scheduler = Process(
                "tests.loop.crashing", words, self.folder, environment(), out.fileno(), out.fileno()
            )
        try:
            return scheduler.wait(60)
        finally:
            scheduler.kill()

    def recorded(self) -> dict[int, int | str | None]:
        """What the record says of each job."""
        rows = self.store.db.rows("SELECT * FROM job ORDER BY id")
        return {
            n: row["exit_code"] if row["exit_code"] is not None else row["outcome"] or row["state"]
            for n, row in enumerate(rows)
        }


@pytest.fixture(params=EXECUTORS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, request.param)
    yield made
    for row in made.store.unsettled():
        folder = made.store.home.attempt(row["job_id"], row["number"], row["token"])
        sweep(folder, row["token"], term_s=0.0)  # what a test that failed has left


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("planned", 2),
        ("recorded", 2),  # the first time it is the load of foreign processes
        ("folder made", 2),
        ("performed Start", 1),
        ("performed Move", 1),
        ("performed Close", 1),
        ("performed Release", 1),
        ("performed Cooled", 1),
    ],
)
def test_a_crash_loses_nothing_and_runs_nothing_twice(place: Place, step: str, nth: int) -> None:
    for code in (0, 7, 0):
        place.add(code)
    assert place.run(step, nth) == -signal.SIGKILL
    # A drain tells of jobs without a line that end under it; this one may have ended under the killed one.
    is_told_already = place.recorded()[1] == 7
    assert place.run() == (0 if is_told_already else 7)
    verdict = judge(place.folder / "trace", place.codes, place.recorded(), killed=False)
    assert verdict.clean, f"{verdict}; {verdict.wrong}; {(place.folder / 'out').read_text()[-3000:]}"


@pytest.mark.parametrize("step", ["performed OpenCancel", "performed Move", "performed WriteStop"])
def test_a_cancel_survives_a_crash_on_its_way(place: Place, step: str) -> None:
    job = place.add(0, seconds=60)
    running(place)
    place.store.wish("cancel", str(job), grace_s=1)
    assert place.run(step) == -signal.SIGKILL
    place.run()
    ends_as_cancelled(place, job)


def test_a_cancel_survives_a_crash_after_a_second_signal(place: Place) -> None:
    job = place.insert(
        f"trap '' TERM; echo 0 start 1 1 >> {place.folder}/trace; while :; do sleep 0.05; done"
    )
    running(place)
    place.store.wish("cancel", str(job), grace_s=2)  # a second signal follows after one
    assert place.run("performed Nudge") == -signal.SIGKILL
    place.run()
    ends_as_cancelled(place, job)


@pytest.mark.parametrize("step", ["performed TakeClaim", "performed Close"])
def test_an_attempt_that_is_given_up_never_runs(place: Place, step: str) -> None:
    job = place.add(0)
    assert place.run("folder made") == -signal.SIGKILL
    place.store.wish("cancel", str(job), grace_s=1)
    assert place.run(step) == -signal.SIGKILL
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row["outcome"] == "cancelled"
    assert not (place.folder / "trace").exists()


def test_a_crash_after_a_second_launch_runs_the_job_once(place: Place) -> None:
    place.add(7)
    assert place.run("recorded", 2) == -signal.SIGKILL
    assert place.run("performed Relaunch") == -signal.SIGKILL
    assert place.run() == 7
    assert judge(place.folder / "trace", place.codes, place.recorded(), killed=False).clean


@pytest.mark.parametrize("step", ["performed NoteDead", "performed Sweep"])
def test_a_crash_while_a_killed_runner_is_settled_leaves_no_process(place: Place, step: str) -> None:
    # What it writes, it writes where a terminal that closes cannot end it any more.
    lasting = f"sh -c 'echo 0 start 1 1 >> {place.folder}/trace; exec sleep 60'"
    job = place.insert(f"setsid sleep 60 & exec setsid -w {lasting}")
    running(place)
    [pid] = runner_pids(place.folder, "state.d")
    os.kill(pid, signal.SIGKILL)
    assert place.run(step) == -signal.SIGKILL
    assert place.run() == 3
    row = place.store.job(job)
    assert row is not None
    assert (row["state"], row["held_by"]) == ("held", "interrupted")
    leaves_nothing(place, job)


@pytest.mark.parametrize(("verb", "step"), [("cancel", "performed Finish"), ("retry", "performed Requeue")])
def test_a_crash_after_a_change_of_the_record_alone(place: Place, verb: str, step: str) -> None:
    job = place.add(0)
    if verb == "retry":
        assert place.run() == 0
    place.store.wish(verb, str(job))
    assert place.run(step) == -signal.SIGKILL
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row["outcome"] == ("cancelled" if verb == "cancel" else "completed")
    assert len(place.store.attempts(job)) == (0 if verb == "cancel" else 2)


def test_a_crash_after_a_runner_was_killed_for_being_late(tmp_path: Path) -> None:
    place = Place(tmp_path, "direct")
    job = place.add(0, seconds=60)
    running(place)
    [pid] = runner_pids(place.folder, "state.d")
    os.kill(pid, signal.SIGSTOP)
    place.store.wish("cancel", str(job), grace_s=0)
    assert place.run("performed KillRunner") == -signal.SIGKILL
    place.run()
    ends_as_cancelled(place, job)


# A launch is tried again only at its deadline: once tells as much there as twice.
@pytest.mark.parametrize(("step", "times"), [("planned", 2), ("recorded", 2), ("folder made", 1)])
def test_a_full_disk_ends_nothing(place: Place, step: str, times: int) -> None:
    place.add(7)
    assert place.run(step, times, "full") == 7
    said = (place.folder / "out").read_text()
    assert said.count("disk is full; retrying every second") == 1
    assert "works again" in said
    assert judge(place.folder / "trace", place.codes, place.recorded(), killed=False).clean


def running(place: Place) -> None:
    """A scheduler that dies when the job runs, and the job's first line."""
    assert place.run("performed Move") == -signal.SIGKILL
    wait_for((place.folder / "trace").exists, "the job's first line")


def leaves_nothing(place: Place, job: int) -> None:
    """No process of the job is left."""
    row = place.store.attempts(job)[0]
    assert processes_of({row["token"]: place.store.home.attempt(job, row["number"], row["token"])}) == {}


def ends_as_cancelled(place: Place, job: int) -> None:
    """It ran once, and is cancelled with every process of it."""
    row = place.store.job(job)
    assert row is not None
    assert (row["state"], row["outcome"]) == ("finished", "cancelled")
    assert len((place.folder / "trace").read_text().splitlines()) == 1
    leaves_nothing(place, job)


def test_a_second_scheduler_is_refused_with_the_first_ones_pid(place: Place) -> None:
    go = place.folder / "go"
    place.insert(f"until [ -e {go} ]; do sleep 0.02; done")
    with open(place.folder / "out", "ab") as out:
        words = ["", "1", place.executor]
        first = Process("tests.loop.crashing", words, place.folder, environment(), out.fileno(), out.fileno())
    wait_for(lambda: "job 1 starts" in (place.folder / "out").read_text(), "the first one's job")
    assert place.run() == 1
    assert f"(pid {first.pid}); end it with `stop`" in (place.folder / "out").read_text()
    go.touch()
    assert first.wait(60) == 0
