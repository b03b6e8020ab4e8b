"""How `why`, `show`, `status` and the events show preemptions, with a real loop, store and runners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.app.diagnosis import diagnose
from gpu_scheduler.app.location import Location
from gpu_scheduler.attempts.sweep import sweep
from gpu_scheduler.core.model.finding import Check, Finding
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.views import why
from tests.loop.rig import SETTINGS, Rig

SLEEP = "exec sleep 60"
#: Ignores the signal of a preemption.
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
LOW, HIGH = 300, 100


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, gpus=2, settings=replace(SETTINGS, preempt_grace_s=30.0))
    yield made
    for row in made.store.active_attempts():
        sweep(made.store.data_dir.attempt_folder(row), row.token, term_s=0.0)


def running(rig: Rig, command: str, **values: object) -> int:
    """Adds a job of low priority and waits until it runs."""
    job = rig.add_job(command, priority=LOW, **values)
    rig.runner_pid(job)
    return job


def findings(rig: Rig, job: int, check: Check) -> list[Finding]:
    """Returns the findings of `why` about one subject."""
    diagnosis = diagnose(Location(str(rig.folder / "state.json")), job)
    return [one for one in why.findings(diagnosis) if one.check is check]


def test_why_shows_what_reserved_gpus_hold_now(rig: Rig) -> None:
    first = running(rig, STUBBORN, share=600)
    second = running(rig, STUBBORN, share=600)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    rig.tick_until(lambda: rig.job(first).state is JobState.STOPPING, "the preemption")
    other = rig.add_job("true", share=100)
    said = [one.message.partition(", load")[0] for one in findings(rig, other, Check.GPU)]
    refused = f"does not accept the job: reserved for job {urgent}; share 0.6 allocated to job"
    assert said == [f"{refused} {first}", f"{refused} {second}"]
