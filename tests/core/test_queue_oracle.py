"""A round decides the same as if it tried every job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import Gpu, GpuClaim, GpuProcess
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling import queue_placement
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, ReservedJob
from gpu_scheduler.core.scheduling.needs import LlmConfig, Requirement, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import request_of
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from tests.attempts import replace
from tests.core.gpu_world import facts as facts_of
from tests.core.gpu_world import gpu, round_of
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
def attempts_on(draw: st.DrawFn, attempt_id: int, gpus: int) -> ActiveAttempt:
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


@settings(deadline=None, max_examples=300)
@given(rounds())
def test_a_round_decides_and_explains_as_if_it_tried_every_job(facts: Facts) -> None:
    expected, actions = place_plainly(facts), place_jobs(facts)
    assert without_reasons(actions) == without_reasons(expected)
    assert {one for one in actions if isinstance(one, act.SetWaitReason)} == {
        one for one in expected if isinstance(one, act.SetWaitReason)
    }
    event(f"{len({type(action) for action in without_reasons(actions)})} kinds of actions")


@settings(deadline=None, max_examples=100)
@given(rounds())
def test_a_round_decides_the_same_for_groups_that_it_does_not_explain(facts: Facts) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_placement, "MAX_EXPLAINED", 0)
        assert without_reasons(place_jobs(facts)) == without_reasons(place_plainly(facts))


@settings(deadline=None, max_examples=100)
@given(rounds(), rounds())
def test_a_group_that_remembers_its_request_has_the_same_request_as_a_new_one(
    before: Facts, after: Facts
) -> None:
    for group in after.pending_groups:
        request_of(group, before)
        request_of(group, after)
        assert request_of(group, before) == request_of(replace(group), before)
        assert request_of(group, after) == request_of(replace(group), after)


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


#: Groups whose reasons are known, in a mixed order of sizes.
MANY = tuple(
    replace(
        jobs_of(ResourceSpec(vram=10_000 + 701 * n % 2000), waiting(n + 1, ago_s=60.0, runs="day")),
        reason=WaitReason(WaitKind.NO_FREE_GPU),
    )
    for n in range(2000)
)
LEFT = queue_placement.MAX_EXPLAINED + 40


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


def test_the_first_groups_that_do_not_fit_have_reasons_and_no_other_keeps_an_old_one() -> None:
    facts = facts_of(gpu(0, paused=True), pending_groups=MANY)
    for situation in (facts, replace(facts, probe_error="gone"), replace(facts, storage_issue="full")):
        found = {
            one.spec_key: one.reason for one in place_jobs(situation) if isinstance(one, act.SetWaitReason)
        }
        assert list(found) == [group.resources.key() for group in MANY]
        explained = [key for key, reason in found.items() if reason.kind is not WaitKind.NOT_TRIED]
        assert explained == [group.resources.key() for group in MANY[: queue_placement.MAX_EXPLAINED]]
        known = tuple(replace(group, reason=found[group.resources.key()]) for group in MANY)
        assert place_jobs(replace(situation, pending_groups=known)) == []
