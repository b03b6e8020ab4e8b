"""Tests that damage to an attempt folder affects only its own job, which is held with a reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import kill_runner
from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.rounds import loop
from gpu_scheduler.runner.process_scan import ticks_of
from gpu_scheduler.store.requests import add_request
from tests.loop.rig import Rig
from tests.processes import sweep
from tests.reasons import words
from tests.waiting import wait_for

Damage = Callable[[Path, str], object]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    yield one
    for row in one.store.active_attempts():
        folder = one.store.data_dir.attempt_folder(row)
        sweep(folder, row.token, term_s=0.0)


def token_of(rig: Rig, job: int) -> str:
    token: str = rig.store.attempts(job)[-1].token
    return token


def waiting(rig: Rig) -> int:
    """Starts a job that waits until the file `go` exists and then exits with code 3."""
    job = rig.add_job("echo start >> starts; until [ -e go ]; do sleep 0.02; done; exit 3", share=100)
    rig.runner_pid(job)
    return job


def text_in(name: str, text: str) -> Damage:
    return lambda folder, token: (folder / name).write_text(text.replace("TOKEN", token))


def remove_claim(folder: Path, _token: str) -> None:
    (folder / "claim").unlink()


def claim_as_folder(folder: Path, token: str) -> None:
    remove_claim(folder, token)
    (folder / "claim").mkdir()


ALIVE: list[Damage] = [
    remove_claim,
    claim_as_folder,
    text_in("claim", '{"token": "TOKEN"}'),
    text_in("result", '{"token": "TOKEN"}'),
    text_in("result", "[" * 200_000),
    text_in("stop", '{"token": "TOKEN"}'),
    text_in("withdrawn", "{"),
    lambda folder, _: os.mkfifo(folder / "result"),
    lambda folder, _: (folder / "stop").symlink_to("/dev/zero"),
]


def test_a_job_continues_after_damage_to_its_attempt_folder(rig: Rig) -> None:
    jobs = [waiting(rig) for _ in ALIVE]
    for job, spoil in zip(jobs, ALIVE, strict=True):
        spoil(rig.attempt_folder(job), token_of(rig, job))
    other = rig.add_job("exit 0", share=100)
    for _ in range(3):
        rig.tick()
    assert [rig.job(job).state for job in jobs] == ["running"] * len(jobs)
    (rig.folder / "go").touch()
    assert rig.tick_until_ended(jobs[0]).exit_code == 3
    assert [rig.tick_until_ended(job).exit_code for job in jobs] == [3] * len(jobs)
    assert rig.tick_until_ended(other).outcome == "completed"
    assert (rig.folder / "starts").read_text().count("start") == len(jobs)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (remove_claim, "its runner died, and the file claim was removed"),
        (claim_as_folder, "its runner died, and the file claim is a folder"),
        (text_in("result", "{}"), "its runner died, and the file result has the wrong token (None…)"),
    ],
)
def test_the_job_of_a_dead_runner_is_held_with_a_reason_that_names_the_damaged_file(
    rig: Rig, spoil: Damage, reason: str
) -> None:
    job = waiting(rig)
    pid = rig.runner_pid(job)
    spoil(rig.attempt_folder(job), token_of(rig, job))
    rig.tick()
    os.kill(pid, signal.SIGKILL)
    row = rig.tick_until_ended(job)
    assert (row.state, words(row.reason)) == ("held", f"{reason}; `retry {job}` runs it again")


@pytest.mark.parametrize("spoil", [remove_claim, claim_as_folder])
@pytest.mark.parametrize("state", ["starting", "running"])
def test_uses_a_result_that_was_written_between_the_observation_and_the_process_scan(
    rig: Rig, spoil: Damage, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = waiting(rig)
    folder = rig.attempt_folder(job)
    spoil(folder, token_of(rig, job))
    with rig.store.db.transaction() as db:
        db.execute(
            "UPDATE attempt SET runner_pid = NULL, runner_start_ticks = NULL, launch_deadline_boot = 0"
        )
        db.execute("UPDATE job SET state = ?", (state,))

    def scan(*words: Any) -> dict[str, tuple[int, ...]]:
        (rig.folder / "go").touch()
        wait_for(lambda: not processes_of(*words), "the end of the job")
        return {}

    monkeypatch.setattr(loop, "processes_of", scan)
    row = rig.tick_until_ended(job)
    assert (row.state, row.outcome, row.exit_code) == ("finished", "failed", 3)
    assert (rig.folder / "starts").read_text().count("start") == 1


def test_does_not_scan_twice_for_the_processes_of_a_job_with_a_result(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner has already waited for all processes. A second scan would only delay the next job."""
    asked: list[tuple[str, ...]] = []

    def scan(attempts: Mapping[str, Path], sure: Collection[str]) -> dict[str, tuple[int, ...]]:
        asked.append(tuple(sure))
        return processes_of(attempts, sure)

    monkeypatch.setattr(loop, "processes_of", scan)
    job = waiting(rig)
    runner = rig.runner_pid(job)
    (rig.folder / "go").touch()
    wait_for(lambda: ticks_of(runner) is None, "the end of the runner")
    assert rig.tick_until_ended(job).outcome == "failed"
    assert asked
    assert not any(asked)


def test_does_not_launch_a_command_again_after_it_began_even_if_its_claim_is_removed(rig: Rig) -> None:
    job = waiting(rig)
    pid, token, folder = rig.runner_pid(job), token_of(rig, job), rig.attempt_folder(job)
    wait_for(lambda: (rig.folder / "starts").exists(), "the start of the job")
    remove_claim(folder, token)
    with rig.store.db.transaction() as db:
        # The store looks as if no scheduler had read the claim.
        db.execute(
            "UPDATE attempt SET runner_pid = NULL, runner_start_ticks = NULL, launch_deadline_boot = 0"
        )
        db.execute("UPDATE job SET state = 'starting'")
    rig.tick()
    assert rig.job(job).state == "starting", "its processes are alive"
    os.kill(pid, signal.SIGKILL)
    sweep(folder, token, term_s=0.0)
    row = rig.tick_until_ended(job)
    assert (row.state, words(row.reason)) == (
        "held",
        f"its runner was killed; `retry {job}` runs it again",
    )
    assert (rig.folder / "starts").read_text() == "start\n"


@pytest.mark.parametrize("spoil", [remove_claim, claim_as_folder])
def test_a_cancel_works_even_if_the_claim_is_damaged(rig: Rig, spoil: Damage) -> None:
    job = waiting(rig)
    folder = rig.attempt_folder(job)
    spoil(folder, token_of(rig, job))
    (folder / "stop").mkdir()
    add_request(rig.store, "cancel", str(job), grace_s=1.0)
    row = rig.tick_until_ended(job)
    assert (row.outcome, row.reason) == ("cancelled", None)


def unseen(rig: Rig) -> int:
    """Starts a job whose scheduler died before it read the claim. Returns the job's id."""
    job = rig.add_job("echo start >> starts; exec sleep 300", share=250)
    [started] = rig.loop.recorder.record([act.Start(job, ("U0",), 250)], rig.clock.now()).values()
    rig.launcher.launch(started)
    wait_for((rig.folder / "starts").exists, "the start of the job")
    with rig.store.db.transaction() as db:
        db.execute("UPDATE attempt SET launch_deadline_boot = 0")
    return job


@pytest.mark.parametrize("spoil", [remove_claim, claim_as_folder])
def test_a_job_keeps_running_if_its_claim_is_damaged_before_the_scheduler_reads_it(
    rig: Rig, spoil: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    job = unseen(rig)
    folder, token = rig.attempt_folder(job), token_of(rig, job)
    kept = rig.add_job("exit 0", share=250)
    spoil(folder, token)
    rig.tick_until(lambda: rig.job(kept).outcome == "completed", "the end of the other job")
    assert rig.job(job).state == "starting"
    assert rig.store.attempts(job)[0].launch_count == 1
    if spoil is claim_as_folder:
        assert f"the file claim in {folder} is a folder, so its runner is unknown" in caplog.text
    add_request(rig.store, "cancel", str(job), grace_s=1.0)
    assert rig.tick_until_ended(job).outcome == "cancelled"
    assert (rig.folder / "starts").read_text() == "start\n"


def test_holds_a_job_with_an_invalid_claim_and_no_processes(rig: Rig) -> None:
    job = unseen(rig)
    folder, token = rig.attempt_folder(job), token_of(rig, job)
    kill_runner(folder, token)
    assert sweep(folder, token, term_s=0.0) == ()
    claim_as_folder(folder, token)
    row = rig.tick_until_ended(job)
    assert (
        words(row.reason) == f"its runner died, and the file claim is a folder; `retry {job}` runs it again"
    )


@pytest.mark.parametrize("spec", ["{", '{"token": "x"}', "folder"])
def test_the_next_launch_replaces_a_damaged_spec(rig: Rig, spec: str) -> None:
    job = rig.add_job("exit 0")
    rig.loop.recorder.record([act.Start(job, ("U0",), 250)], rig.clock.now())
    folder = rig.attempt_folder(job)
    folder.mkdir(parents=True)
    (folder / "command.sh").touch()
    (folder / "spec.json").mkdir() if spec == "folder" else (folder / "spec.json").write_text(spec)
    with rig.store.db.transaction() as db:
        db.execute("UPDATE attempt SET launch_deadline_boot = 0")
    assert rig.tick_until_ended(job).outcome == "completed"
