"""The estimates on which a round is based: learned run times, and the progress of running jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts import job_progress
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.history import Estimate, RunTimeKey
from gpu_scheduler.core.scheduling.settings import QueueOrder
from tests.loop.rig import SETTINGS, Rig
from tests.waiting import wait_for

#: A job with a progress bar that has worked for 10 minutes and needs 30 more.
TRAINING = (
    "echo '  1%|          | 1/100 [00:24<39:36, 24.00s/it]';"
    " echo ' 25%|##5       | 25/100 [10:00<30:00, 24.00s/it]'; until [ -e go ]; do sleep 0.02; done"
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.end_processes()
    found.loop.progress.close()


def remaining_s(facts: Facts, job: int) -> float | None:
    [found] = [one.observed.remaining_s for one in facts.attempts if one.job_id == job]
    return found


def train(rig: Rig) -> int:
    """Starts a job that has done a quarter of its steps, on GPU 0 of two."""
    job = rig.add_job(TRAINING, gpus=1)

    def has_printed() -> bool:
        rig.tick()
        log = rig.store.attempts(job)[-1].log if rig.store.attempts(job) else None
        return log is not None and Path(log).exists() and "25/100" in Path(log).read_text()

    wait_for(has_printed, "the first step")
    rig.tick_until(lambda: rig.job(job).state == "running", "job running")
    return job


def end(rig: Rig, job: int) -> None:
    (rig.folder / "go").touch()
    rig.tick_until_ended(job)


def test_a_completed_job_changes_the_estimate_for_its_command(rig: Rig) -> None:
    spec = JobSpec("command", "sleep 0.2", str(rig.folder), command="sleep 0.2")
    key = RunTimeKey(spec.identity, spec.to_json())
    assert rig.tick().run_times.estimate(key) == Estimate()
    rig.tick_until_ended(rig.add_job("sleep 0.2"))
    predicted_s = rig.tick().run_times.estimate(key).predicted_s
    assert predicted_s is not None
    assert predicted_s >= 0.1  # its start is recorded a little late
    assert Rig(rig.folder).tick().run_times.estimate(key).predicted_s == predicted_s


def test_the_progress_of_running_jobs_counts_while_others_wait(rig: Rig) -> None:
    job = train(rig)
    assert remaining_s(rig.tick(), job) is None  # no job waits
    rig.add_job("true", gpus=2)
    wait_for(lambda: remaining_s(rig.tick(), job) is not None, "the remaining time")
    end(rig, job)


def test_the_progress_of_running_jobs_does_not_count_without_reservations(rig: Rig) -> None:
    backfill = Rig(rig.folder, settings=replace(SETTINGS, queue_order=QueueOrder.BACKFILL))
    threads = {*threading.enumerate()}
    job = train(backfill)
    backfill.add_job("true", gpus=2)
    assert [remaining_s(backfill.tick(), job) for _ in range(3)] == [None] * 3
    assert "progress" not in [one.name for one in {*threading.enumerate()} - threads]
    end(backfill, job)


def test_a_new_scheduler_knows_the_progress_in_its_first_round_if_gpus_are_reserved(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_progress, "FIRST_READING_S", 60.0)  # longer than a busy machine needs
    job = train(rig)
    waiting = rig.add_job("true", gpus=2)
    reservation = act.SetQueueReservation(waiting, ("U0", "U1"), 2e9, 9)
    rig.loop.recorder.record([reservation], rig.clock.now())
    again = Rig(rig.folder)
    facts = again.loop.tick()
    while facts is None:  # a round that changes something, such as the count of GPU time, has no facts
        facts = again.loop.tick()
    assert facts.queue_reservation is not None
    assert remaining_s(facts, job) == pytest.approx(1800.0, abs=300.0)
    end(again, job)
    again.loop.progress.close()
