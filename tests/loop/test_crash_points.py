"""Kills the scheduler at every failpoint, and checks the trace files of the jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.store.requests import add_request
from tests.loop.crash_place import Place
from tests.stress.harness import environment, runner_pids
from tests.stress.trace import judge
from tests.waiting import wait_for
from tests.warm import Process

EXECUTORS = ["direct", "screen"]


@pytest.fixture(params=EXECUTORS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, request.param)
    yield made
    made.end_processes()


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("planned", 2),
        ("recorded", 2),  # The first commit records only the load of foreign processes.
        ("folder made", 2),
        ("performed Start", 1),
        ("performed AttemptChanged running", 1),
        ("performed AttemptChanged ended", 1),
        ("performed AttemptChanged released", 1),
        ("performed AttemptChanged closed", 1),
    ],
)
def test_no_job_is_lost_or_runs_twice_after_a_crash_of_the_scheduler(
    place: Place, step: str, nth: int
) -> None:
    for code in (0, 7, 0):
        place.add(code)
    assert place.run(step, nth) == -signal.SIGKILL
    # The exit code of a drain covers a job without a line only if the job ended during the drain. This job
    # may have ended before the kill.
    is_reported_already = place.recorded()[1] == 7
    assert place.run() == (0 if is_reported_already else 7)
    verdict = judge(place.folder / "trace", place.codes, place.recorded(), killed=False)
    assert verdict.clean, f"{verdict}; {verdict.wrong}; {(place.folder / 'out').read_text()[-3000:]}"


@pytest.mark.parametrize(
    "step", ["performed JobChanged running", "performed AttemptChanged stopping", "performed RequestStop"]
)
def test_a_cancel_is_completed_after_a_crash_at_any_of_its_steps(place: Place, step: str) -> None:
    job = place.add(0, seconds=60)
    run_until_job_runs(place)
    add_request(place.store, "cancel", str(job), grace_s=1)
    assert place.run(step) == -signal.SIGKILL
    place.run()
    assert_ended_as_cancelled(place, job)


def test_a_cancel_is_completed_after_a_crash_at_its_second_signal(place: Place) -> None:
    job = place.insert(
        f"trap '' TERM; echo 0 start 1 1 >> {place.folder}/trace; while :; do sleep 0.05; done"
    )
    run_until_job_runs(place)
    # The second signal is sent one second after the first.
    add_request(place.store, "cancel", str(job), grace_s=2)
    assert place.run("performed WakeRunner") == -signal.SIGKILL
    place.run()
    assert_ended_as_cancelled(place, job)


@pytest.mark.parametrize("step", ["performed VoidClaim", "performed AttemptChanged ended"])
def test_an_attempt_whose_claim_was_voided_never_runs(place: Place, step: str) -> None:
    job = place.add(0)
    assert place.run("folder made") == -signal.SIGKILL
    add_request(place.store, "cancel", str(job), grace_s=1)
    assert place.run(step) == -signal.SIGKILL
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row.outcome == "cancelled"
    assert not (place.folder / "trace").exists()


def test_a_job_runs_once_if_the_scheduler_crashes_after_a_second_launch(place: Place) -> None:
    place.add(7)
    assert place.run("recorded", 2) == -signal.SIGKILL
    assert place.run("performed Relaunch") == -signal.SIGKILL
    assert place.run() == 7
    assert judge(place.folder / "trace", place.codes, place.recorded(), killed=False).clean


@pytest.mark.parametrize("step", ["performed AttemptChanged orphaned", "performed Sweep"])
def test_no_process_is_left_after_a_crash_while_a_killed_runner_is_reconciled(
    place: Place, step: str
) -> None:
    # The command writes its trace only once a closing terminal can no longer end it.
    lasting = f"sh -c 'echo 0 start 1 1 >> {place.folder}/trace; exec sleep 60'"
    job = place.insert(f"setsid sleep 60 & exec setsid -w {lasting}")
    run_until_job_runs(place)
    [pid] = runner_pids(place.folder, "state.d")
    os.kill(pid, signal.SIGKILL)
    assert place.run(step) == -signal.SIGKILL
    assert place.run() == 3
    row = place.store.job(job)
    assert row is not None
    assert (row.state, row.held_by) == ("held", "interrupted")
    assert_no_process_left(place, job)


@pytest.mark.parametrize(
    ("verb", "step"), [("cancel", "performed JobChanged finished"), ("retry", "performed JobChanged queued")]
)
def test_a_request_takes_effect_only_once_if_a_crash_follows_its_recording(
    place: Place, verb: str, step: str
) -> None:
    job = place.add(0)
    if verb == "retry":
        assert place.run() == 0
    add_request(place.store, verb, str(job))
    assert place.run(step) == -signal.SIGKILL
    place.run()
    row = place.store.job(job)
    assert row is not None
    assert row.outcome == ("cancelled" if verb == "cancel" else "completed")
    assert len(place.store.attempts(job)) == (0 if verb == "cancel" else 2)


def test_a_cancel_is_completed_if_the_scheduler_crashes_after_it_kills_the_runner(tmp_path: Path) -> None:
    place = Place(tmp_path, "direct")
    job = place.add(0, seconds=60)
    run_until_job_runs(place)
    [pid] = runner_pids(place.folder, "state.d")
    os.kill(pid, signal.SIGSTOP)
    add_request(place.store, "cancel", str(job), grace_s=0)
    assert place.run("performed KillRunner") == -signal.SIGKILL
    place.run()
    assert_ended_as_cancelled(place, job)


# After "folder made", the launch is repeated only at its deadline, so a single failure is enough.
@pytest.mark.parametrize(("step", "times"), [("planned", 2), ("recorded", 2), ("folder made", 1)])
def test_a_full_disk_does_not_end_the_scheduler(place: Place, step: str, times: int) -> None:
    place.add(7)
    assert place.run(step, times, "full") == 7
    said = (place.folder / "out").read_text()
    assert said.count("disk is full; retrying every second") == 1
    assert "works again" in said
    assert judge(place.folder / "trace", place.codes, place.recorded(), killed=False).clean


def run_until_job_runs(place: Place) -> None:
    """Runs a scheduler that dies once the job is running.

    Then waits for the first line of the job's trace file.
    """
    assert place.run("performed AttemptChanged running") == -signal.SIGKILL
    wait_for((place.folder / "trace").exists, "the job's first line")


def assert_no_process_left(place: Place, job: int) -> None:
    """Checks that the job has left no process."""
    row = place.store.attempts(job)[0]
    assert processes_of({row.token: place.store.data_dir.attempt_folder(row)}) == {}


def assert_ended_as_cancelled(place: Place, job: int) -> None:
    """Checks that the job ran once, was cancelled, and has left no process."""
    row = place.store.job(job)
    assert row is not None
    assert (row.state, row.outcome) == ("finished", "cancelled")
    assert len((place.folder / "trace").read_text().splitlines()) == 1
    assert_no_process_left(place, job)


def test_a_second_scheduler_is_refused_with_the_pid_of_the_first(place: Place) -> None:
    go = place.folder / "go"
    place.insert(f"until [ -e {go} ]; do sleep 0.02; done")
    with open(place.folder / "out", "ab") as out:
        words = ["", "1", place.executor]
        first = Process("tests.loop.crashing", words, place.folder, environment(), out.fileno(), out.fileno())
    wait_for(lambda: "job 1 starts" in (place.folder / "out").read_text(), "the first scheduler's job")
    assert place.run() == 1
    assert f"(pid {first.pid}); end it with `stop`" in (place.folder / "out").read_text()
    go.touch()
    assert first.wait(60) == 0
