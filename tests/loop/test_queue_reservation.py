"""A reservation by queue order, with a real loop and a real store; the attempts exist only in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.gpu import GOOD_SAMPLES_NEEDED, LOST, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.core.scheduling.settings import QueueOrder
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import queue_reservation
from gpu_scheduler.store.requests import add_request
from tests.fakes.remote_executor import RemoteExecutor
from tests.loop.manual_clock import ManualClock
from tests.loop.rig import SETTINGS, Rig

HOUR = 3600.0
RESERVING = replace(SETTINGS, aging=1, idle_budget=1.0, launch_deadline_s=30.0)


class SchedulerDied(BaseException):
    """Ends a round at a failpoint, as SIGKILL would."""


class Box:
    """Two GPUs. A job of known length has one of them, and a job for both waits for it.

    step: the number of the failpoint at which the scheduler dies; 0 for none.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.executor, self.clock = folder, RemoteExecutor(), ManualClock()
        self.settings, self.died, self._left = RESERVING, False, step
        self.rig = self._new_rig()
        self.holder = self.add("holder")
        spec = self.rig.job(self.holder).spec
        with self.rig.store.db.transaction() as db:
            db.execute(
                "INSERT INTO run_time (workload_class, identity, at, seconds) VALUES (?, ?, ?, ?)",
                (workload_class_of(spec), spec.identity, self.clock.now().wall, 3 * HOUR),
            )
        self.pass_time(0.0)
        self.large = self.add("large", gpus=2)
        self.pass_time(2 * HOUR)
        self.late = self.add("late")
        self.pass_time(10.0)
        self.end(self.late)
        self.pass_time(10.0)
        self.small = self.add("small")
        self.pass_time(10.0)

    def _new_rig(self) -> Rig:
        return Rig(self.folder, 2, self.executor, self.settings, clock=self.clock, failpoint=self._failpoint)

    def _failpoint(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.died = True
            raise SchedulerDied(name)

    def add(self, command: str, **values: object) -> int:
        """Adds a job that needs whole GPUs; returns its id."""
        spec = JobSpec("command", command, str(self.folder), command=command)
        given: Any = {"share": 1000, **values}
        return self.rig.store.insert_job(replace(spec, **given), "test", self.clock.now().wall)

    def end(self, job: int) -> None:
        """Lets the newest attempt of a job complete, once it is running."""
        self.run(job)
        self.executor.end(self.rig.store.attempts(job)[-1].token, 0)

    def run(self, job: int) -> None:
        """Lets time pass until a started job runs. The scheduler may have died before it launched it."""
        while self.state(job) == "starting":
            self.pass_time(self.settings.launch_deadline_s + 1.0)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, and runs rounds until nothing is left to do."""
        self.clock.boot += seconds
        self.rig.take_sample()
        self.settle()

    def settle(self) -> None:
        """Runs rounds until nothing is left to do."""
        while True:
            try:
                self.rig.tick()
                return
            except SchedulerDied:
                self.restart()

    def restart(self, **settings: Any) -> None:
        """Lets another scheduler follow."""
        self.rig.store.close()
        self.settings = replace(self.settings, **settings)
        self.rig = self._new_rig()

    def ask(self, verb: str, target: object, **values: Any) -> None:
        """Carries out a request."""
        add_request(self.rig.store, verb, str(target), **values)
        self.settle()

    def sample(self, first: GpuSample, second: GpuSample) -> None:
        """Takes a sample, and runs rounds until nothing is left to do."""
        self.clock.boot += 1.0
        self.rig.watch.accept_sample(Snapshot(self.clock.now().boot, (first, second)))
        snapshot = self.rig.watch.snapshot
        assert snapshot is not None
        self.rig.loop.recorder.record_gpus(snapshot.gpus, None, self.clock.now())
        self.settle()

    def reserved(self) -> tuple[int, tuple[str, ...]] | None:
        """Returns the job for which GPUs are reserved, and these GPUs."""
        found = queue_reservation(self.rig.store)
        return None if found is None else (found.job.job_id, found.gpus)

    def state(self, job: int) -> str:
        """Returns the state of a job."""
        return str(self.rig.job(job).state.value)

    def events(self, kind: EventKind) -> int:
        """Returns how many events of this kind the large job has had."""
        return sum(one.kind == kind for one in events_of_job(self.rig.store, self.large))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    assert made.reserved() == (made.large, ("U0", "U1"))
    assert made.state(made.small) == "queued"
    yield made
    made.rig.store.close()


def gpu_sample(index: int, **values: Any) -> GpuSample:
    return replace(GpuSample(f"U{index}", index, "card", 24_576, 0, 0.0, ()), **values)


def test_the_large_job_starts_when_the_holder_ends_and_the_small_one_follows(box: Box) -> None:
    found = queue_reservation(box.rig.store)
    assert found is not None
    # The holder, which runs for three hours, began two hours ago.
    assert 0.0 < found.start_at - box.clock.now().wall <= HOUR + 300.0
    assert found.overtakes == 1
    box.end(box.holder)
    box.pass_time(10.0)
    assert (box.state(box.large), box.reserved()) == ("running", None)
    box.end(box.large)
    box.pass_time(10.0)
    assert box.state(box.small) == "running"
    assert (box.events(EventKind.GPUS_RESERVED), box.events(EventKind.RESERVATION_DROPPED)) == (1, 0)


def test_the_next_scheduler_holds_the_same_reservation(box: Box) -> None:
    before = queue_reservation(box.rig.store)
    box.restart()
    box.settle()
    assert queue_reservation(box.rig.store) == before
    assert box.state(box.small) == "queued"
    assert (box.events(EventKind.GPUS_RESERVED), box.events(EventKind.RESERVATION_DROPPED)) == (1, 0)


def test_the_reservation_is_the_same_after_a_death_at_any_step(tmp_path: Path) -> None:
    expected = (2, ("U0", "U1"))
    for step in range(1, 200):
        box = Box(tmp_path / str(step), step)
        assert (box.reserved(), box.state(box.small)) == (expected, "queued"), step
        assert box.events(EventKind.GPUS_RESERVED) == 1
        box.end(box.holder)
        box.pass_time(10.0)
        box.run(box.large)
        assert box.state(box.large) == "running"
        box.rig.store.close()
        if not box.died:
            break
    assert step > 10
    assert not box.died


def test_another_scheduler_that_only_backfills_drops_the_reservation(box: Box) -> None:
    box.restart(queue_order=QueueOrder.BACKFILL)
    box.settle()
    assert (box.reserved(), box.state(box.small)) == (None, "running")
    assert box.events(EventKind.RESERVATION_DROPPED) == 1


@pytest.mark.parametrize("verb", ["hold", "cancel"])
def test_the_gpus_become_free_if_the_job_leaves_the_queue(box: Box, verb: str) -> None:
    box.ask(verb, box.large)
    assert (box.reserved(), box.state(box.small)) == (None, "running")


def test_a_released_job_begins_to_wait_again(box: Box) -> None:
    box.ask("hold", box.large)
    box.pass_time(1.0)
    box.ask("release", box.large)
    assert (box.reserved(), box.state(box.large)) == (None, "queued")


def test_a_job_that_moves_behind_others_gives_them_its_gpus(box: Box) -> None:
    box.ask("set", box.large, name="priority", value=300)
    assert box.state(box.small) == "running"
    # The reservation depends now on a job without an estimate, but it stays.
    assert box.reserved() == (box.large, ("U0", "U1"))


def test_a_job_of_higher_priority_takes_a_reserved_gpu(box: Box) -> None:
    box.ask("set", box.small, name="priority", value=100)
    assert box.state(box.small) == "running"
    assert box.reserved() == (box.large, ("U0", "U1"))


@pytest.mark.parametrize(
    ("name", "value", "runs"), [("gpus", 1, "large"), ("gpus", 3, "small"), ("allowed", [0], "small")]
)
def test_a_change_of_what_the_job_needs_takes_effect_at_once(
    box: Box, name: str, value: object, runs: str
) -> None:
    box.ask("set", box.large, name=name, value=value)
    jobs = {"large": box.large, "small": box.small}
    assert {job: box.state(number) for job, number in jobs.items() if box.state(number) == "running"} == {
        runs: "running"
    }
    assert box.reserved() is None


def test_the_reservation_stays_while_the_line_of_the_job_is_being_edited(box: Box) -> None:
    before = box.reserved()
    other = box.add("other")
    box.rig.loop.set_line_waits({box.large: WaitReason(WaitKind.LINE_REMOVED)})
    box.pass_time(5.0)
    assert (box.reserved(), box.state(other)) == (before, "queued")
    box.rig.loop.set_line_waits({box.large: WaitReason(WaitKind.LINE_MALFORMED)})
    box.pass_time(5.0)
    assert box.reserved() is None
    assert box.state(box.small) != "queued"


def test_a_reservation_ends_while_one_of_its_gpus_is_paused(box: Box) -> None:
    box.ask("pause", "U0")
    assert (box.reserved(), box.state(box.small)) == (None, "running")


def test_a_pause_of_one_gpu_does_not_change_how_often_a_job_was_overtaken(box: Box) -> None:
    before = box.reserved()
    box.ask("hold", box.small)
    box.ask("pause", "U0")
    assert box.reserved() is None
    box.ask("resume", "U0")
    assert box.reserved() == before == (box.large, ("U0", "U1"))


def test_a_reservation_ends_while_one_of_its_gpus_is_lost(box: Box) -> None:
    box.sample(gpu_sample(0), gpu_sample(1, fault=LOST, used_mib=None))
    assert box.reserved() is None
    assert box.state(box.small) == "queued"
    for _ in range(GOOD_SAMPLES_NEEDED):
        box.sample(gpu_sample(0), gpu_sample(1))
    # The job has been overtaken often enough before.
    assert (box.reserved(), box.state(box.small)) == ((box.large, ("U0", "U1")), "queued")


def test_a_reservation_ends_while_a_foreign_process_has_its_gpu(box: Box) -> None:
    foreign = GpuProcess(4_000_000, 23_000)
    box.sample(gpu_sample(0), gpu_sample(1, used_mib=23_000, processes=(foreign,)))
    assert box.reserved() is None
    box.sample(gpu_sample(0), gpu_sample(1))
    # The job has been overtaken often enough before.
    assert box.reserved() == (box.large, ("U0", "U1"))
    assert box.state(box.small) == "queued"


def test_the_reservation_stays_while_the_gpus_cannot_be_read(box: Box) -> None:
    box.rig.watch.failure = "timeout"
    box.settle()
    assert box.reserved() == (box.large, ("U0", "U1"))
    box.rig.loop.recorder.record_probe_failure("timeout")
    box.rig.watch.failure = None
    box.pass_time(5.0)
    assert box.reserved() == (box.large, ("U0", "U1"))
    assert box.state(box.small) == "queued"


def test_the_reservation_stays_during_a_drain(box: Box) -> None:
    box.rig.loop.placing = False
    box.pass_time(60.0)
    assert box.reserved() == (box.large, ("U0", "U1"))


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_small_job_runs_beside_the_large_one_unless_gpus_are_exclusive(box: Box, exclusive: bool) -> None:
    box.ask("set", box.large, name="share", value=700)
    box.restart(exclusive=exclusive)
    box.ask("set", box.small, name="share", value=300)
    assert box.reserved() == (box.large, ("U0", "U1"))
    assert box.state(box.small) == ("queued" if exclusive else "running")


def test_idle_time_on_reserved_gpus_is_counted(box: Box) -> None:
    def idle_s() -> float:
        row = box.rig.store.db.row("SELECT total(reserved_idle_s) AS s FROM gpu_time")
        assert row is not None
        return float(row["s"])

    before = idle_s()
    box.pass_time(600.0)
    assert idle_s() - before == pytest.approx(600.0, abs=21.0)  # GPU 1; the holder has the other one


def test_no_other_reservation_begins_while_too_much_time_was_idle(box: Box) -> None:
    with box.rig.store.db.transaction() as db:
        db.execute("UPDATE gpu_time SET reserved_idle_s = 1e9")
    box.pass_time(10.0)
    assert box.reserved() == (box.large, ("U0", "U1"))  # it stays
    box.ask("hold", box.large)
    assert box.state(box.small) == "running"
