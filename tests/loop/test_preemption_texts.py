"""How `why`, `show`, `status` and the events show preemptions, with a real loop, store and runners."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.finding import Check, Finding
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.daemon.reporter import StatusBoardFile
from gpu_scheduler.show import job_detail, status_text, why_text
from gpu_scheduler.show.events import message_of
from gpu_scheduler.show.job_detail import job_detail as detail_of
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.status import StatusQuery, status
from gpu_scheduler.show.wait_text import job_reason_text
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.store.events import events_of_job
from tests.loop.rig import PREEMPTING, SETTINGS, Rig

SLEEP = "exec sleep 60"
#: Ignores the signal of a preemption.
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
LOW, HIGH = 300, 100


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, gpus=2, settings=PREEMPTING)
    yield made
    made.end_processes()


def running(rig: Rig, command: str, **values: object) -> int:
    """Adds a job of low priority and waits until it runs."""
    job = rig.add_job(command, priority=LOW, **values)
    rig.runner_pid(job)
    return job


def without_numbers(text: str) -> str:
    """Returns the text with an N in place of the number of seconds that are left."""
    return re.sub(r" in \d+ s", " in N s", text)


def findings(rig: Rig, job: int, check: Check) -> list[Finding]:
    """Returns the findings of `why` about one subject."""
    diagnosis = diagnose(Location(str(rig.folder / "state.json")), job)
    return [one for one in why_text.findings(diagnosis) if one.check is check]


def test_why_shows_what_reserved_gpus_hold_now(rig: Rig) -> None:
    first = running(rig, STUBBORN, share=600)
    second = running(rig, STUBBORN, share=600)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    rig.tick_until(lambda: rig.job(first).state is JobState.STOPPING, "the preemption")
    other = rig.add_job("true", share=100)
    said = [one.message.partition(", load")[0] for one in findings(rig, other, "GPU")]
    refused = f"does not accept the job: reserved for job {urgent}; share 0.6 allocated to job"
    assert said == [f"{refused} {first}", f"{refused} {second}"]


def test_status_why_show_and_the_events_say_that_a_job_is_being_preempted(rig: Rig) -> None:
    victim = running(rig, STUBBORN)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    rig.tick_until(lambda: rig.job(victim).state is JobState.STOPPING, "the preemption")
    said = f"being preempted for job {urgent}; gets SIGKILL in N s; then queued again"
    where = Location(str(rig.folder / "state.json"))
    headline = why_text.to_text(diagnose(where, victim), None, verbose=False).partition("\n")[0]
    assert without_numbers(headline) == f"job {victim} is stopping: {said}"
    assert f"Reason        {said}\n" in without_numbers(job_detail.to_text(detail_of(where, victim)))
    shown = status_text.to_text(status(where, StatusQuery()))
    assert said in without_numbers(shown)
    [event] = [one for one in events_of_job(rig.store, victim) if one.kind == EventKind.STOPPING]
    assert message_of(event).full_text == (
        f"job {victim} is being preempted for job {urgent}; it has 30 s to end"
    )


def test_the_status_board_shows_preemptions_as_status_does(rig: Rig) -> None:
    victim = running(rig, STUBBORN)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    rig.tick_until(lambda: rig.job(victim).state is JobState.STOPPING, "the preemption")
    board = StatusBoardFile(rig.store, lambda: rig.folder, rig.clock, SETTINGS, rig.loop.progress)
    board.write(rig.tick(), 1)
    text = without_numbers((rig.folder / "status.txt").read_text())
    where = Location(str(rig.folder / "state.json"))
    assert [gpu.state for gpu in status(where, StatusQuery()).gpus] == ["busy", "reserved"]
    assert "  1  reserved " in text
    assert f"being preempted for job {urgent}; gets SIGKILL in N s; then queued again" in text
    assert f"waiting for job {victim}, which is being preempted for it" in text


def test_a_preempted_job_that_waits_says_for_which_job_it_was_preempted(rig: Rig) -> None:
    victim = running(rig, SLEEP)
    urgent = rig.add_job(SLEEP, priority=HIGH, preempt=True, gpus=2)
    rig.runner_pid(urgent)
    where = Location(str(rig.folder / "state.json"))
    said = f"; preempted for job {urgent}"
    headline = why_text.to_text(diagnose(where, victim), None, verbose=False).partition("\n")[0]
    assert headline.startswith(f"job {victim} is queued: ")
    assert headline.endswith(said)
    [row] = [job for job in status(where, StatusQuery()).jobs if job.record.id == victim]
    assert (job_reason_text(row) or "").endswith(said)


def test_why_says_why_a_job_that_may_preempt_does_not(rig: Rig) -> None:
    rig.add_job(SLEEP, priority=HIGH, gpus=2)
    job = rig.add_job("true", priority=HIGH, preempt=True)
    rig.tick()
    other = rig.add_job("true", priority=HIGH)
    [said] = findings(rig, job, "preempting")
    assert said.message == "the job may preempt others, but not now: no job of lower priority is running"
    assert findings(rig, other, "preempting") == []
