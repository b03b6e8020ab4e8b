"""How `status`, `why` and the events show reservations by queue order, with a real loop and runners."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.finding import Check, Finding
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.core.scheduling.settings import QueueOrder
from gpu_scheduler.daemon.reporter import StatusBoardFile
from gpu_scheduler.show import status_text, why_text
from gpu_scheduler.show.events import message_of
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.status import StatusQuery, status
from gpu_scheduler.show.wait_text import job_reason_text
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import queue_reservation
from tests.loop.rig import SETTINGS, Rig
from tests.processes import sweep

SLEEP = "exec sleep 60"
#: A command that has never run.
UNKNOWN = "exec sleep 61"
RESERVE = replace(SETTINGS, aging=1, idle_budget=2.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, gpus=2, settings=RESERVE)
    made.store.record_options(StartOptions(aging=1, idle_budget=2.0))
    yield made
    for row in made.store.active_attempts():
        sweep(made.store.data_dir.attempt_folder(row), row.token, term_s=0.0)


def add_old_job(rig: Rig, gpus: int) -> int:
    """Adds a job as if it had been submitted two hours ago."""
    job = rig.add_job(SLEEP, gpus=gpus)
    with rig.store.db.transaction() as db:
        earlier = "submitted_at = submitted_at - 7200, queued_at = queued_at - 7200"
        db.execute(f"UPDATE job SET {earlier} WHERE id = ?", (job,))
    return job


def run_known_job(rig: Rig) -> int:
    """Starts a job whose command took 5000 s the last time."""
    job = rig.add_job(SLEEP, gpus=1)
    row = rig.job(job)
    with rig.store.db.transaction() as db:
        db.execute(
            "INSERT INTO run_time (workload_class, identity, at, seconds) VALUES (?, ?, 0, 5000)",
            (workload_class_of(row.spec), row.identity),
        )
    rig.runner_pid(job)
    return job


def overtake(rig: Rig) -> None:
    """Lets a job start and end that was submitted just now."""
    job = rig.add_job("true", gpus=1)
    rig.tick_until(lambda: rig.job(job).state == "finished", f"end of job {job}", 20)
    rig.tick_until(lambda: len(rig.store.active_attempts()) == 1, "the release of its GPU", 20)


def reserve(rig: Rig) -> tuple[int, int]:
    """Makes a reservation; returns the job on GPU 0 and the job for which both GPUs are reserved."""
    holder = run_known_job(rig)
    big = add_old_job(rig, gpus=2)
    overtake(rig)
    rig.tick_until(lambda: queue_reservation(rig.store), "the reservation", 20)
    return holder, big


def where(rig: Rig) -> Location:
    return Location(str(rig.folder / "state.json"))


def findings(rig: Rig, job: int, check: Check) -> list[Finding]:
    """Returns the findings of `why` about one subject, without times of day."""
    found = why_text.findings(diagnose(where(rig), job))
    return [replace(one, message=without_times(one.message)) for one in found if one.check is check]


def without_times(text: str | None) -> str:
    """Returns the text with a T in place of each time of day and of each run time."""
    text = re.sub(r"about (\w{3} |[\d-]{10} )?\d\d:\d\d", "about T", text or "")
    return re.sub(r"run for [\d.]+ s", "run for T", text)


def reason(rig: Rig, job: int) -> str:
    """Returns why a job waits, as `status` shows it."""
    [row] = [one for one in status(where(rig), StatusQuery()).jobs if one.record.id == job]
    return without_times(job_reason_text(row))


@pytest.fixture
def is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets commands take this process for the scheduler."""
    for module in ("status", "why"):
        monkeypatch.setattr(f"gpu_scheduler.show.{module}.scheduler_pid_of", lambda store: 1)


@pytest.mark.usefixtures("is_up")
def test_status_says_for_whom_gpus_are_reserved_and_why_others_wait(rig: Rig) -> None:
    holder, big = reserve(rig)
    small = rig.add_job(UNKNOWN, gpus=1)
    rig.tick()
    assert reason(rig, big) == (
        "GPUs 0,1 are reserved for it from about T, because it has been overtaken once;"
        " needs 2 idle GPUs, 1 free"
    )
    assert reason(rig, small) == (
        f"needs 1 idle GPU, 0 free; GPU 1 is reserved for job {big} from about T (it has been overtaken once)"
    )
    gpus = status(where(rig), StatusQuery()).gpus
    assert [(gpu.state, gpu.jobs, gpu.reserved_for) for gpu in gpus] == [
        ("busy", (holder,), (big,)),
        ("reserved", (), (big,)),
    ]
    text = status_text.to_text(status(where(rig), StatusQuery()))
    assert f"{holder}, then {big}" in text
    StatusBoardFile(rig.store, lambda: rig.folder, rig.clock, RESERVE, rig.loop.progress).write(rig.tick(), 1)
    board = without_times((rig.folder / "status.txt").read_text())
    assert f"GPU 1 is reserved for job {big} from about T" in board
    assert "GPUs 0,1 are reserved for it from about T" in board


def test_the_row_of_several_jobs_says_for_whom_gpus_are_reserved(rig: Rig, is_up: None) -> None:
    _, big = reserve(rig)
    small = [rig.add_job(UNKNOWN, gpus=1) for _ in range(2)]
    rig.tick()
    text = without_times(status_text.to_text(status(where(rig), StatusQuery())))
    assert f"2 jobs wait for 1 idle GPU: {small[0]}, {small[1]}" in text
    assert f"; GPU 1 is reserved for job {big} from about T" in text


@pytest.mark.usefixtures("is_up")
def test_why_shows_the_reservation_and_the_estimates_behind_it(rig: Rig) -> None:
    holder, big = reserve(rig)
    own, awaited = (one.message for one in findings(rig, big, "reserved"))
    assert own == "GPUs 0,1 are reserved for it from about T, because it has been overtaken once"
    assert awaited.startswith(f"GPU 0: job {holder} is expected to end in 1 h 2")
    assert awaited.endswith("(it has run for T; one earlier run took 1 h 23 min)")


@pytest.mark.usefixtures("is_up")
def test_why_shows_what_lets_a_job_use_reserved_gpus(rig: Rig) -> None:
    _, big = reserve(rig)
    unknown, limited = rig.add_job(UNKNOWN, gpus=1), rig.add_job(UNKNOWN, gpus=1, timeout_s=10_000.0)
    rule = (
        f"GPU 1 is reserved for job {big} from about T (it has been overtaken once); the job may use a"
        " reserved GPU only if it leaves room for that job or ends before it starts, and"
    )
    [found] = findings(rig, unknown, "reserved")
    assert found.message == f"{rule} nothing is known about how long it takes"
    advice = f"if it surely ends before that, with `set {unknown}`, give it a time limit, such as timeout="
    assert found.remedy.startswith(advice)
    assert 60 < int(found.remedy.removeprefix(advice).removesuffix("m")) <= 90  # GPU 0 is held for 1 h 23 min
    [found] = findings(rig, limited, "reserved")
    assert found.message == f"{rule} it takes at most its time limit of 2 h 46 min"
    assert found.remedy == ""
    short = rig.add_job(UNKNOWN, gpus=1, timeout_s=60.0)
    assert findings(rig, short, "reserved") == []


@pytest.mark.usefixtures("is_up")
def test_why_shows_how_often_a_job_must_be_overtaken_and_what_its_reservation_would_cost(rig: Rig) -> None:
    rig.loop.settings = replace(RESERVE, aging=2)
    rig.store.record_options(StartOptions(aging=2))
    rig.runner_pid(rig.add_job(UNKNOWN, gpus=1))
    big = add_old_job(rig, gpus=2)
    assert findings(rig, big, "overtaken") == []
    overtake(rig)
    [found] = findings(rig, big, "overtaken")
    assert found.message == "overtaken once; after 2, GPUs may be reserved for it"
    rig.store.record_options(StartOptions(aging=1, idle_budget=0.01))
    [found] = findings(rig, big, "overtaken")
    # GPU 1 would be idle for the 600 s that the job on GPU 0 is guessed to take.
    assert found.message == (
        "overtaken once; no GPUs are reserved for it yet, because they would be idle for about 0.167 GPU"
        " hours: more than the 0.010 GPU hours that are left for that (--idle-budget), and more than 1 % of"
        " the GPU time for which it has waited"
    )
    rig.store.record_options(StartOptions(queue_order=QueueOrder.BACKFILL))
    assert findings(rig, big, "overtaken") == []


def test_the_events_say_when_a_reservation_begins_and_ends(rig: Rig) -> None:
    _, big = reserve(rig)
    rig.loop.settings = replace(RESERVE, queue_order=QueueOrder.BACKFILL)
    rig.tick()
    kinds = (EventKind.GPUS_RESERVED, EventKind.RESERVATION_DROPPED)
    said = [message_of(one).full_text for one in events_of_job(rig.store, big) if one.kind in kinds]
    assert [without_times(text) for text in said] == [
        f"job {big} has been overtaken once; GPUs 0,1 are reserved for it from about T",
        f"job {big} has no reserved GPUs any more",
    ]


@pytest.mark.usefixtures("is_up")
def test_why_announces_nothing_to_a_job_whose_line_is_malformed(rig: Rig) -> None:
    _, big = reserve(rig)
    assert findings(rig, big, "reserved") != []
    rig.loop.set_line_waits({big: WaitReason(WaitKind.LINE_MALFORMED)})
    rig.tick_until(lambda: queue_reservation(rig.store) is None, "the end of the reservation", 20)
    assert findings(rig, big, "reserved") == findings(rig, big, "overtaken") == []
