"""Where the queue waits in line with other programs, and which GPUs it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.gpu import LOST, GpuClaim
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, QueueReservation, ReservedJob
from gpu_scheduler.core.scheduling.history import Overtakes, QueueStart
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import (
    claimed_gpus,
    freed_by_hand,
    queue_line,
    queue_since,
    reserved_gpus,
)
from tests.attempts import replace
from tests.core.gpu_world import NOW, facts, gpu, running

CLAIM = GpuClaim(None, 7, "ann")


def pending(resources: ResourceSpec, since: float) -> PendingGroup:
    return PendingGroup(resources, (QueuedJob(1, 200, 0, waiting_since=since),))


def in_order(groups: list[PendingGroup]) -> tuple[PendingGroup, ...]:
    """Returns the groups with queue positions in this order."""
    return tuple(replace(one, jobs=(replace(one.jobs[0], position=at),)) for at, one in enumerate(groups))


def ago(seconds: float) -> float:
    """Returns the wall time so many seconds before now."""
    return NOW.wall - seconds


@pytest.mark.parametrize(
    ("groups", "values", "line"),
    [
        # The first job that an empty GPU could run decides.
        ([pending(ResourceSpec(), ago(30)), pending(ResourceSpec(share=500), ago(90))], {}, {0: 30, 1: 30}),
        ([pending(ResourceSpec(allowed=(1,)), ago(30))], {}, {1: 30}),
        (
            [pending(ResourceSpec(allowed=(1,)), ago(500)), pending(ResourceSpec(), ago(20))],
            {},
            {0: 20, 1: 500},
        ),
        ([pending(ResourceSpec(vram=99_999), ago(30)), pending(ResourceSpec(), ago(9))], {}, {0: 9, 1: 9}),
        # A job for two GPUs keeps none of them idle.
        ([pending(ResourceSpec(gpus=2), ago(30))], {}, {}),
        ([pending(ResourceSpec(gpus=2), ago(30)), pending(ResourceSpec(), ago(9))], {}, {0: 9, 1: 9}),
        # With each start, the queue begins to wait anew.
        ([pending(ResourceSpec(), ago(30))], {"started": ago(5)}, {0: 5, 1: 5}),
        ([pending(ResourceSpec(), ago(3))], {"started": ago(5)}, {0: 3, 1: 3}),
        # Nothing can start.
        ([], {}, {}),
        ([pending(ResourceSpec(), ago(30))], {"storage_issue": "the disk is full"}, {}),
        ([pending(ResourceSpec(), ago(30))], {"probe_error": "no answer"}, {}),
    ],
)
def test_the_queue_waits_in_line_as_one_program(
    groups: list[PendingGroup], values: dict[str, Any], line: dict[int, float]
) -> None:
    given = dict(values)
    started = given.pop("started", None)
    starts = Overtakes([QueueStart(200, 1, 0.0, started)] if isinstance(started, float) else [])
    world = facts(gpu(0), gpu(1), pending_groups=in_order(groups), overtakes=starts, **given)
    found = queue_line(world, {"U0", "U1"})
    expected = {f"U{index}": NOW.boot - seconds for index, seconds in line.items()}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("broken", [{"paused": True}, {"sample": None}])
def test_the_queue_does_not_wait_for_a_gpu_that_accepts_no_jobs(broken: dict[str, Any]) -> None:
    groups = (pending(ResourceSpec(), ago(30)),)
    assert queue_line(facts(gpu(0, **broken), gpu(1), pending_groups=groups), {"U0"}) == {}
    lost = replace(gpu(0).sample, fault=LOST)  # type: ignore[type-var]
    assert queue_line(facts(gpu(0, sample=lost), pending_groups=groups), {"U0"}) == {}


def test_only_claims_on_whole_gpus_are_waited_for() -> None:
    turn = replace(CLAIM, is_turn=True)
    part = replace(CLAIM, mib=1000)
    world = facts(
        gpu(0, claims=(CLAIM,)), gpu(1, claims=(turn,)), gpu(2, claims=(part,)), gpu(3), gpu(4), gpu(5),
        attempts=(
            running(1, "U3"), running(2, "U4", share=500), running(3, "U5", state=AttemptState.ENDED),
        ),
    )  # fmt: skip
    assert claimed_gpus(world) == {"U0", "U3"}


def test_reserved_gpus_are_kept_for_any_reservation() -> None:
    job, spec = QueuedJob(1, 0, 1), ResourceSpec()
    world = facts(gpu(0))
    assert reserved_gpus(world) == set()
    by_order = QueueReservation(job, spec, ("U2",), 0.0, 16)
    world = replace(world, reserved_jobs=(ReservedJob(job, spec, ("U0", "U1")),), queue_reservation=by_order)
    assert reserved_gpus(world) == {"U0", "U1", "U2"}


def test_a_preemption_by_hand_frees_the_gpus_of_its_victim_alone() -> None:
    by_hand = StopRequest("preempted", 10.0)
    stops = (by_hand, replace(by_hand, preemptor=4), StopRequest("cancelled", 10.0), None)
    attempts = tuple(running(n, f"U{n}", stop_request=stop) for n, stop in enumerate(stops))
    world: Facts = facts(attempts=attempts)
    assert freed_by_hand(world) == {"U0"}


def test_the_wait_of_the_queue_is_in_seconds_since_boot() -> None:
    assert queue_since(ago(30), facts()) == pytest.approx(NOW.boot - 30)


def test_after_the_clock_was_set_back_each_start_still_begins_the_wait_of_the_queue_anew() -> None:
    started = facts(overtakes=Overtakes([QueueStart(200, 1, 0.0, ago(5))]))
    assert queue_since(ago(-3600), started) == pytest.approx(NOW.boot - 5)
    assert queue_since(ago(-1), started) == pytest.approx(NOW.boot + 1)
    # Until the first start after the change, the queue counts as the first to have begun to wait.
    assert queue_since(ago(-3600), facts()) < queue_since(ago(1e6), facts())
