"""Looking for the checkpoints of a job when its attempt has ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_scheduler.attempts import job_progress as saved_work
from gpu_scheduler.attempts.job_progress import start_of
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.core.model.job import (
    AttemptResult,
    AttemptStatus,
    Checkpoint,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.actions import Start
from tests.loop.rig import Rig
from tests.records import attempt_record


def test_a_folder_that_does_not_respond_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = threading.Event()
    monkeypatch.setattr(saved_work, "MAX_SEARCH_S", 0.01)
    monkeypatch.setattr(saved_work, "find_checkpoint", lambda *_: responds.wait())
    rig = Rig(tmp_path)
    job = rig.add_job("exit 3")
    assert rig.tick_until_ended(job).outcome is Outcome.FAILED
    responds.set()


def test_without_a_newer_checkpoint_the_one_that_the_attempt_resumed_from_stays_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    job = rig.store.job(rig.add_job("exit 0"))
    assert job is not None
    earlier, newer = Checkpoint("/c/step-10", 10.0, 1.0), Checkpoint("/c/step-20", 20.0, 2.0)
    for found, resumed_from, expected in (
        (None, earlier, earlier), (newer, earlier, newer), (newer, None, newer), (None, None, None),
    ):  # fmt: skip
        monkeypatch.setattr(saved_work, "find_checkpoint", lambda *_, found=found: found)
        attempt = attempt_record(job_id=job.id, resumed_from=resumed_from)
        assert saved_work.newest_checkpoint(rig.store, job.spec, [attempt]) == expected


def ended(cause: str | None, exit_code: int) -> AttemptResult:
    return AttemptResult(cause, exit_code, None, True, None, (), 1.0, 2.0)


WITHDRAWN = StopRequest("preempted", 30.0, "withdraw", "x")


@pytest.mark.parametrize(
    ("status", "is_searched"),
    [
        (AttemptStatus("live"), False),
        (AttemptStatus("dead", result=ended(None, 0)), False),  # it has completed, so nothing is left to do
        (AttemptStatus("dead", result=ended(None, 0), withdrawn=WITHDRAWN), True),
        (AttemptStatus("dead", result=ended(None, 3)), True),
        (AttemptStatus("dead", result=ended("preempted", 0)), True),
        (AttemptStatus("dead", result=ended("cancelled", 0)), True),
        (AttemptStatus("dead", result=ended("timed_out", 0)), True),
        (AttemptStatus("dead"), True),
        (AttemptStatus(folder_exists=False), True),
    ],
)
def test_saved_work_is_searched_unless_the_command_has_completed_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: AttemptStatus, is_searched: bool
) -> None:
    rig = Rig(tmp_path)
    job = rig.add_job("exit 0")
    rig.loop.recorder.record([Start(job, tuple(rig.store.managed_gpus().values()), 1000)], rig.clock.now())
    [attempt] = rig.store.active_attempts()
    work = SavedWork(None, None, False, False)
    monkeypatch.setattr(saved_work, "saved_work_of", lambda *_: work)
    found = observe_attempt(rig.store, attempt, lambda _: status)
    assert found.observed.saved_work is (work if is_searched else None)


@pytest.mark.parametrize(("started_at", "start"), [(None, 100.0), (140.0, 100.0), (40.0, 40.0)])
def test_an_attempt_begins_with_its_record_or_with_the_adopted_process(
    started_at: float | None, start: float
) -> None:
    """Checkpoints that an adopted process saved before its adoption are its own."""
    assert start_of(attempt_record(created_at=100.0, started_at=started_at)) == start
