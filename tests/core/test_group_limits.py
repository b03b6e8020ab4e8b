"""How many jobs of a group run at the same time, and that a full group keeps nothing from others."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, ReservedJob
from gpu_scheduler.core.scheduling.forecast import WaitingJob, forecast, possible_preemption
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of, queue_line
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from tests.attempts import replace
from tests.core.gpu_world import NOW, group, round_of
from tests.core.queue_world import (
    HOUR,
    WHOLE,
    GivenTimes,
    exactly,
    holder,
    jobs_of,
    overtaken,
    reservations,
    starts,
    stored,
    waiting,
)

TRAIN = ResourceSpec(share=100, group="train", max_running=3)
FULL = WaitReason(WaitKind.GROUP_FULL, "train", running=3, max_running=3)
TIMES = GivenTimes({"hour": exactly(HOUR)})


def member(attempt_id: int, resources: ResourceSpec = TRAIN, **values: Any) -> ActiveAttempt:
    """Returns an attempt of a job of the group, which ends in an hour."""
    return holder(attempt_id, runs="hour", **{"share": 100, "resources": resources, **values})


def reasons(actions: list[act.Action]) -> dict[str, WaitReason]:
    return {one.spec_key: one.reason for one in actions if isinstance(one, act.SetWaitReason)}


@pytest.mark.parametrize(
    ("name", "max_running", "expected"),
    [
        (None, None, None),
        ("train", None, None),
        ("train", 2, "train"),
        ("train/a", None, "train"),
        ("train/a/b", 2, "train"),
    ],
)
def test_a_job_with_a_slash_or_a_limit_belongs_to_a_group(
    name: str | None, max_running: int | None, expected: str | None
) -> None:
    spec = JobSpec("command", "x", "/", command="x", name=name, max_running=max_running)
    resources = ResourceSpec.of(spec, 4000)
    assert (resources.group, resources.max_running) == (expected, max_running)
    assert ResourceSpec.from_key(resources.key()) == resources


@pytest.mark.parametrize(("running_now", "started"), [(0, 3), (1, 2), (2, 1), (3, 0), (5, 0)])
def test_no_more_jobs_of_a_group_run_than_may_run(running_now: int, started: int) -> None:
    attempts = tuple(member(n) for n in range(1, running_now + 1))
    situation = round_of(4, group(TRAIN, *range(100, 120)), group(WHOLE, 200), attempts=attempts)
    actions = place_jobs(situation)
    assert sorted(starts(actions)) == [*range(100, 100 + started), 200]
    assert reasons(actions)[TRAIN.key()] == replace(FULL, running=max(3, running_now))


@pytest.mark.parametrize("state", [AttemptState.ENDED, AttemptState.RELEASED])
def test_an_attempt_that_has_ended_does_not_count(state: AttemptState) -> None:
    attempts = (member(1), member(2), replace(member(3), state=state))
    assert len(starts(place_jobs(round_of(4, group(TRAIN, 100, 101), attempts=attempts)))) == 1


def test_the_smallest_limit_of_the_jobs_of_a_group_counts_for_all_of_them() -> None:
    two, free = replace(TRAIN, max_running=2), replace(TRAIN, max_running=None)
    found = place_jobs(round_of(4, group(free, 1, 2, 3), group(two, 9)))
    assert sorted(starts(found)) == [1, 2]
    limited = place_jobs(round_of(4, group(free, 1, 2, 3), attempts=(member(5, two),)))
    assert sorted(starts(limited)) == [1]
    other = replace(TRAIN, group="eval", max_running=None)
    assert len(starts(place_jobs(round_of(4, group(other, 1, 2, 3), group(two, 9))))) == 4


def full(*groups: PendingGroup, resources: ResourceSpec = TRAIN, **values: object) -> Facts:
    """Returns a round in which the group is full, on GPU 0, and other jobs have overtaken its jobs."""
    attempts = (holder(1, runs="hour"), *(member(n, resources) for n in range(2, 5)))
    given = {"attempts": attempts, "overtakes": overtaken(8), "run_times": TIMES, **values}
    return round_of(2, *groups, **given)


def test_no_gpus_are_reserved_for_a_job_of_a_full_group() -> None:
    pair = replace(TRAIN, share=1000, gpus=2)
    late = jobs_of(WHOLE, waiting(9, ago_s=60.0))
    actions = place_jobs(full(jobs_of(pair, waiting(1)), late))
    assert (reservations(actions), starts(actions)) == ([], {9: ("U1",)})
    # The reservation that it had ends, and so does one of a job whose line is being edited.
    for is_delayed in (False, True):
        kept = replace(stored(waiting(1), pair, "U0", "U1"), is_delayed=is_delayed)
        groups = [late] if is_delayed else [jobs_of(pair, waiting(1)), late]
        actions = place_jobs(full(*groups, queue_reservation=kept))
        assert (starts(actions), [one.job_id for one in reservations(actions)]) == ({9: ("U1",)}, [None])


def test_a_job_that_begins_to_wait_for_gpus_gets_no_reservation_at_once() -> None:
    pair = replace(TRAIN, share=1000, gpus=2, max_running=4)
    for reason, is_reserved in ((FULL, False), (None, True)):
        first = replace(jobs_of(pair, waiting(1)), reason=reason)
        actions = place_jobs(full(first, resources=pair))
        assert bool(reservations(actions)) == is_reserved


def test_the_job_with_the_reservation_has_its_place_in_the_group() -> None:
    pair, one = replace(TRAIN, share=1000, gpus=2, max_running=4), replace(TRAIN, max_running=4)
    actions = place_jobs(full(jobs_of(pair, waiting(1)), jobs_of(one, waiting(2)), resources=one))
    assert [each.job_id for each in reservations(actions)] == [1]
    assert starts(actions) == {}
    assert reasons(actions)[one.key()] == replace(FULL, running=4, max_running=4)


def test_a_job_of_a_full_group_preempts_nobody() -> None:
    urgent = replace(TRAIN, share=1000, preempt=True)
    busy = (holder(1, "U0", priority=200), holder(2, "U1", priority=200), *map(member, range(3, 6)))
    job = waiting(1, 0)
    for most, is_preempting in ((3, False), (4, True)):
        attempts = tuple(
            replace(one, resources=replace(TRAIN, max_running=most)) if one.share == 100 else one
            for one in busy
        )
        first = replace(urgent, max_running=most)
        situation = round_of(2, jobs_of(first, job), attempts=attempts)
        assert any(isinstance(one, act.Reserve) for one in place_jobs(situation)) == is_preempting
        asked = possible_preemption(situation, need_of(first, situation), job, first)
        assert (asked is not None) == is_preempting


@pytest.mark.parametrize(("members", "dropped"), [(2, False), (3, True)])
def test_a_job_that_preempted_others_starts_only_if_its_group_has_a_place(
    members: int, dropped: bool
) -> None:
    reserved = ReservedJob(waiting(1), TRAIN, ("U1",))
    attempts = tuple(member(n) for n in range(1, members + 1))
    actions = place_jobs(round_of(2, group(TRAIN, 2), attempts=attempts, reserved_jobs=(reserved,)))
    assert [one.job_id for one in actions if isinstance(one, act.DropReservation)] == [1] * dropped
    assert sorted(starts(actions)) == [1] * (not dropped)
    assert reasons(actions)[TRAIN.key()] == FULL


def test_a_full_group_does_not_wait_in_line_with_other_programs() -> None:
    for members, line in ((2, {"U0"}), (3, set())):
        attempts = tuple(member(n, gpus=("U1",)) for n in range(1, members + 1))
        assert queue_line(round_of(2, group(TRAIN, 9), attempts=attempts), ["U0"]).keys() == line


def test_a_forecast_lets_as_many_jobs_run_as_may_run() -> None:
    limited = replace(TRAIN, max_running=2)
    jobs = [WaitingJob(waiting(n, runs="hour"), limited) for n in range(1, 7)]
    found = forecast(replace(round_of(4), run_times=TIMES), jobs)
    begun = sorted((one.start_at - NOW.wall) / HOUR for one in found.jobs.values())
    assert begun == [0, 0, 1, 1, 2, 2]
