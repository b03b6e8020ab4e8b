"""With the index, a round decides the same as if it asked placement for every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuClaim, GpuProcess
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.units import Now
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling import queue_walk
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu, PendingGroup, QueuedJob, ReservedJob
from gpu_scheduler.core.scheduling.needs import LlmConfig, Requirement, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import PendingQueue, RequestIndex
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from tests.core.gpu_world import NOW, gpu, round_of
from tests.core.gpu_world import facts as facts_of
from tests.core.plain_walk import place_plainly
from tests.core.queue_world import HOUR, GivenTimes, exactly, holder, jobs_of, overtaken, stored, waiting

TIMES = GivenTimes({"minute": exactly(60.0), "hour": exactly(HOUR), "day": exactly(24 * HOUR)})
RUNS = st.sampled_from(("unknown", "minute", "hour", "day"))
ALLOWED = st.sampled_from((None, None, None, (0, 1), (1, 2)))
COUNTS = st.sampled_from((None, 1, 1, 2, 3))
FLAG = st.sampled_from((False, False, False, True))
SPECS = st.builds(
    ResourceSpec,
    share=st.sampled_from((None, None, 100, 200, 400, 500, 600, 1000)),
    gpus=COUNTS,
    llm=st.sampled_from((None, None, "small", "both")),
    is_command=FLAG,
    allowed=ALLOWED,
    vram=st.sampled_from((None, 1000, 3000, 6000, 9000, 12_000, 20_000, 30_000)),
    exclusive=FLAG,
    workload_class=st.sampled_from((None, None, "class")),
    preempt=FLAG,
)
CONFIG = LlmConfig(models={"small": Requirement(None, 1, 2000), "both": Requirement(300, 1, 4000)})
SETTINGS = st.builds(
    Settings,
    queue_order=st.sampled_from((QueueOrder.RESERVE, QueueOrder.RESERVE, QueueOrder.BACKFILL)),
    aging=st.sampled_from((0, 1, 3)),
    exclusive=FLAG,
    preempt_at_priority=st.sampled_from((None, None, 100)),
)


@st.composite
def gpus_of(draw: st.DrawFn, index: int) -> Gpu:
    what = draw(st.sampled_from(("free",) * 5 + ("paused", "foreign", "loaded", "claimed", "unknown")))
    process = GpuProcess(77, draw(st.sampled_from((500, 9000, 22_000))))
    return {
        "free": lambda: gpu(index),
        "paused": lambda: gpu(index, paused=True),
        "foreign": lambda: gpu(index, processes=(process,), owners={77: None}),
        "loaded": lambda: gpu(index, processes=(process,), owners={77: None}, foreign_loads=(99.0,)),
        "claimed": lambda: gpu(index, claims=(GpuClaim(9000, 9),)),
        "unknown": lambda: gpu(index, used=None, processes=None),
    }[what]()


HOLDERS = st.sampled_from(({"share": 1000}, {"share": 500}, {"share": 300}, {"share": 0, "vram": 9000}))
STATES = st.sampled_from((AttemptState.RUNNING, AttemptState.RUNNING, AttemptState.ENDED))


@st.composite
def attempts_on(draw: st.DrawFn, attempt_id: int, gpus: int) -> Attempt:
    uuids = draw(st.sets(st.integers(0, gpus - 1), min_size=1, max_size=2))
    return holder(
        attempt_id, *(f"U{n}" for n in sorted(uuids)), runs=draw(RUNS),
        age_s=draw(st.sampled_from((0.0, HOUR))), state=draw(STATES),
        priority=draw(st.sampled_from((200, 300))), **draw(HOLDERS),
    )  # fmt: skip


@st.composite
def queued_jobs(draw: st.DrawFn, job_id: int) -> QueuedJob:
    priority, ago_s = draw(st.sampled_from((100, 200, 200))), draw(st.sampled_from((60.0, 24 * HOUR)))
    return waiting(job_id, priority, ago_s=ago_s, runs=draw(RUNS))


@st.composite
def rounds(draw: st.DrawFn) -> Facts:
    number = draw(st.integers(1, 4))
    gpus = tuple(draw(gpus_of(index)) for index in range(number))
    attempts = tuple(draw(attempts_on(n, number)) for n in range(1, draw(st.integers(0, 4)) + 1))
    specs = draw(st.lists(SPECS, min_size=1, max_size=8, unique=True))
    groups: list[PendingGroup] = []
    job_ids = iter(draw(st.permutations(range(1, 4 * len(specs) + 1))))
    for spec in specs:
        drawn = [draw(queued_jobs(next(job_ids))) for _ in range(draw(st.integers(1, 4)))]
        listed = sorted(drawn, key=lambda job: (job.priority, job.position))
        groups.append(PendingGroup(spec, tuple(listed), draw(FLAG)))
    reservation = None
    if draw(st.booleans()):
        group = draw(st.sampled_from(groups))
        reservation = stored(group.jobs[0], group.resources, "U0")
    preempting: tuple[ReservedJob, ...] = ()
    if draw(FLAG):
        preempting = (ReservedJob(waiting(99, 0), ResourceSpec(share=500), ("U0",), may_start=False),)
    return facts_of(
        *gpus, pending_groups=tuple(groups), attempts=attempts, settings=draw(SETTINGS), run_times=TIMES,
        overtakes=overtaken(draw(st.sampled_from((0, 2, 50)))), config=CONFIG, queue_reservation=reservation,
        reserved_jobs=preempting, learned_mib=draw(st.sampled_from(({}, {"class": 5000}))),
    )  # fmt: skip


def without_reasons(actions: Sequence[act.Action]) -> list[act.Action]:
    return [action for action in actions if not isinstance(action, act.SetWaitReason)]


@settings(deadline=None, max_examples=200)
@given(rounds())
def test_a_round_with_few_groups_decides_and_explains_as_without_an_index(facts: Facts) -> None:
    expected = place_plainly(facts)
    actions = place_jobs(facts)
    assert without_reasons(actions) == without_reasons(expected)
    assert {one for one in actions if isinstance(one, act.SetWaitReason)} == {
        one for one in expected if isinstance(one, act.SetWaitReason)
    }
    event(f"{len({type(action) for action in without_reasons(actions)})} kinds of actions")


@settings(deadline=None, max_examples=200)
@given(rounds())
def test_a_round_with_many_groups_decides_as_without_an_index(facts: Facts) -> None:
    expected = without_reasons(place_plainly(facts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_walk, "MAX_EXPLAINED", 0)
        patch.setattr(queue_walk, "_ALWAYS_EXPLAINED", 0)
        assert without_reasons(place_jobs(facts)) == expected


@settings(deadline=None, max_examples=100)
@given(rounds(), rounds(), st.lists(st.tuples(st.integers(0, 7), FLAG), max_size=6))
def test_an_updated_index_equals_a_new_one(
    before: Facts, after: Facts, changes: list[tuple[int, bool]]
) -> None:
    queue = PendingQueue.of(before.pending_groups)
    for number, reads in changes:
        if reads:
            queue.requests(before)
        group = after.pending_groups[number % len(after.pending_groups)]
        key = group.resources.key()
        queue = queue.updated({key: None if queue.has_group(key) else group})
    facts = replace(after, pending_groups=queue)
    fresh = PendingQueue({group.resources.key(): group for group in queue})
    assert list(queue) == list(fresh)
    assert queue.requests(facts) == fresh.requests(facts)
    assert isinstance(queue.requests(facts), RequestIndex)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns the needs for which a round asks placement, once for each time."""
    found: list[object] = []
    place = RoundAllocations.place

    def count(self: RoundAllocations, need: object, *args: object) -> object:
        found.append(need)
        return place(self, need, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RoundAllocations, "place", count)
    return found


#: Groups whose reasons are known, in an order in which every request is smaller than those before.
MANY = tuple(
    replace(
        jobs_of(ResourceSpec(vram=12_000 - n), waiting(n + 1, ago_s=60.0, runs="day")),
        reason=WaitReason(WaitKind.NO_FREE_GPU),
    )
    for n in range(2000)
)
LEFT = queue_walk.MAX_EXPLAINED + 40


@pytest.mark.parametrize(
    "gpus",
    [
        (gpu(0, paused=True),),
        (gpu(0, claims=(GpuClaim(24_000, 9),)),),
        (gpu(0, processes=(GpuProcess(77, 20_000),), owners={77: None}, foreign_loads=(99.0,)),),
    ],
)
def test_a_round_asks_for_few_of_many_requests_that_do_not_fit(
    gpus: tuple[Gpu, ...], asked: list[object]
) -> None:
    assert without_reasons(place_jobs(facts_of(*gpus, pending_groups=MANY))) == []
    assert len(asked) <= LEFT


def test_a_round_asks_for_few_of_many_requests_that_a_reservation_holds_back(asked: list[object]) -> None:
    first = waiting(5000, 0)
    pair = ResourceSpec(share=1000, gpus=2)
    facts = round_of(
        2, jobs_of(pair, first), *MANY, attempts=(holder(1, "U1", runs="hour"),), run_times=TIMES,
        queue_reservation=stored(first, pair, "U0", "U1"),
    )  # fmt: skip
    assert [type(action) for action in without_reasons(place_jobs(facts))] == [act.SetQueueReservation]
    assert len(asked) <= LEFT


def test_the_wait_reasons_of_many_groups_are_determined_in_turn() -> None:
    groups = tuple(replace(group, reason=None) for group in MANY)
    facts = facts_of(gpu(0, paused=True), pending_groups=groups)
    explained: dict[str, WaitReason] = {}
    for turn in range(40):
        now = Now(NOW.wall, NOW.boot + 5.0 * turn, NOW.boot_id)
        actions = place_jobs(replace(facts, now=now))
        found = {one.spec_key: one.reason for one in actions if isinstance(one, act.SetWaitReason)}
        assert len(found) <= queue_walk.MAX_EXPLAINED
        explained |= found
        groups = tuple(
            replace(group, reason=explained.get(group.resources.key())) for group in facts.pending_groups
        )
        facts = replace(facts, pending_groups=groups)
        if turn == 0:
            assert list(found) == [group.resources.key() for group in groups[: len(found)]]
    assert len(explained) == len(MANY)
    paused = facts
    free = replace(paused, gpus=(gpu(0, claims=(GpuClaim(24_000, 9),)),))
    for turn in range(40):
        actions = place_jobs(replace(free, now=Now(NOW.wall, NOW.boot + 5.0 * turn, NOW.boot_id)))
        explained |= {one.spec_key: one.reason for one in actions if isinstance(one, act.SetWaitReason)}
    assert len({reason.obstacles[0].kind for reason in explained.values()}) == 1
