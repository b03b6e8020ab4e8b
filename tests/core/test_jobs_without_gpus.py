"""Jobs without a GPU: they start whatever the GPUs do, a few at a time, and take nothing from the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.command.build import build_command, display_command, session_name
from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, Suspicion
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, ReservedJob
from gpu_scheduler.core.scheduling.forecast import (
    WaitingJob,
    forecast,
    judged_gpus,
    possible_preemption,
    queue_outlook,
)
from gpu_scheduler.core.scheduling.history import Overtakes, QueueStart, RunTimes
from gpu_scheduler.core.scheduling.needs import LlmConfig, Requirement, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import is_drained, need_of, queue_line
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.preemption import NoPreemption
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import replace
from tests.core.decisions import stops_in
from tests.core.gpu_world import NOW, facts, gpu, group, round_of
from tests.core.preemption_world import situations
from tests.core.queue_world import (
    HALF,
    HOUR,
    PAIR,
    WHOLE,
    GivenTimes,
    exactly,
    holder,
    jobs_of,
    overtaken,
    starts,
    stored,
    waiting,
)
from tests.core.test_group_limits import reasons
from tests.core.test_playback import Box, ExactTimes, with_small_jobs

CPU = ResourceSpec(gpus=0)
TWO = Settings(cpu_jobs=2)
FULL = WaitReason(WaitKind.CPU_JOBS_FULL, running=2, max_running=2)


def spec(**values: Any) -> JobSpec:
    command = values.pop("command", "python t.py --llm big --cuda 3")
    return JobSpec("command", command, "/", **{"command": command, "gpus": 0, **values})


def on_cpu(attempt_id: int, **values: Any) -> ActiveAttempt:
    """Returns an attempt without a GPU, which ends in an hour."""
    return replace(holder(attempt_id, runs="hour", share=0, resources=CPU, **values), gpus=())


def test_all_that_a_line_says_about_its_model_is_left_out() -> None:
    resources = ResourceSpec.of(spec(name="prep/1", max_running=3), 4000, learn_needs=True)
    assert resources == ResourceSpec(gpus=0, group="prep", max_running=3)
    assert ResourceSpec.from_key(resources.key()) == resources
    big = LlmConfig(models={"big": Requirement(gpus=8)})
    for limits in (Settings(), Settings(exclusive=True)):
        assert need_of(resources, replace(facts(gpu(0), settings=limits), config=big)) == Need(0)


UNUSABLE: dict[str, Facts] = {
    "paused": facts(gpu(0, paused=True)),
    "busy": facts(gpu(0), attempts=(holder(9),)),
    "suspect": facts(gpu(0, suspicion=Suspicion((3,), 0.0))),
    "claimed": facts(gpu(0, claims=(GpuClaim(None, 8),))),
    "lost": facts(gpu(0, sample=replace(gpu(0).sample, fault=LOST))),  # type: ignore[type-var]
    "not sampled yet": facts(gpu(0, sample=None), all_sampled=False),
    "unreadable": facts(gpu(0, sample=None), all_sampled=False, probe_error="no answer"),
    "none": facts(),
    "reserved": facts(
        gpu(0), attempts=(holder(9, runs="hour"),), queue_reservation=stored(waiting(5), WHOLE, "U0")
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_job_without_a_gpu_starts_whatever_the_gpus_do(name: str) -> None:
    situation = replace(UNUSABLE[name], pending_groups=(group(CPU, 1), group(HALF, 2)), settings=TWO)
    assert starts(place_jobs(situation)) == {1: ()}


def test_a_job_without_a_gpu_waits_for_the_storage() -> None:
    situation = round_of(1, group(CPU, 1), storage_issue="the disk is full")
    assert place_jobs(situation) == [
        act.SetWaitReason(CPU.key(), WaitReason(WaitKind.STORAGE, "the disk is full"))
    ]


@pytest.mark.parametrize(
    ("running_now", "state", "started"),
    [
        (0, AttemptState.RUNNING, [3, 1]),
        (1, AttemptState.STOPPING, [3]),
        (2, AttemptState.STARTING, []),
        (5, AttemptState.RUNNING, []),
        (2, AttemptState.ENDED, [3, 1]),
    ],
)
def test_no_more_jobs_without_a_gpu_run_than_may_run(
    running_now: int, state: AttemptState, started: list[int]
) -> None:
    attempts = tuple(on_cpu(n, state=state) for n in range(1, running_now + 1))
    named = ResourceSpec(gpus=0, group="prep")
    waits = (group(CPU, 1, 2), group(named, (3, 100), (4, 300)), group(WHOLE, 9))
    actions = place_jobs(round_of(1, *waits, attempts=attempts, settings=TWO))
    assert starts(actions) == {9: ("U0",), **dict.fromkeys(started, ())}
    full = replace(FULL, running=max(2, running_now) if state is not AttemptState.ENDED else 2)
    assert reasons(actions) == {CPU.key(): full, named.key(): full}
    # A reason that is known is not recorded again.
    known = [replace(one, reason=full) for one in waits[:2]]
    assert reasons(place_jobs(round_of(1, *known, attempts=attempts, settings=TWO))) == {}


def test_a_job_that_has_not_been_read_yet_keeps_its_place_in_the_order() -> None:
    named = ResourceSpec(gpus=0, group="prep")
    waits = (group(CPU, (1, 100), more=True), group(named, (2, 200)))
    assert starts(place_jobs(round_of(0, *waits, settings=TWO))) == {1: ()}


def test_a_group_with_and_without_gpus_has_one_limit() -> None:
    first = ResourceSpec(share=100, group="run", max_running=2)
    second = ResourceSpec(gpus=0, group="run", max_running=2)
    limits = Settings(cpu_jobs=8)
    situation = round_of(1, group(second, 1, 2), group(first, 3), settings=limits)
    actions = place_jobs(situation)
    assert starts(actions) == {3: ("U0",), 1: ()}
    assert reasons(actions)[second.key()].kind is WaitKind.GROUP_FULL
    alone = place_jobs(replace(situation, settings=Settings(cpu_jobs=1), attempts=(on_cpu(7),)))
    assert starts(alone) == {3: ("U0",)}
    assert reasons(alone)[second.key()].kind is WaitKind.CPU_JOBS_FULL


REQUESTS = st.sampled_from(
    [HALF, WHOLE, PAIR, ResourceSpec(vram=9000), ResourceSpec(vram=4000, preempt=True), ResourceSpec(),
     replace(WHOLE, allowed=(0,)), replace(HALF, group="a", max_running=1)]
)  # fmt: skip
PRIORITIES = st.sampled_from([100, 200, 200, 300])
LIMITS = st.builds(
    lambda exclusive, aging, interval, urgent: Settings(
        exclusive=exclusive, aging=aging, start_interval_s=interval, preempt_at_priority=urgent, cpu_jobs=3
    ),
    st.booleans(), st.sampled_from([1, 8]), st.sampled_from([0.0, 0.0, 5.0]), st.sampled_from([None, 100]),
)  # fmt: skip


@st.composite
def waiting_groups(draw: st.DrawFn) -> list[PendingGroup]:
    """Draws groups of jobs that wait for GPUs; all of their ids are below 100."""
    groups: dict[ResourceSpec, list[Any]] = {}
    for job_id in range(1, draw(st.integers(0, 8)) + 1):
        ago_s = draw(st.sampled_from([60.0, 5 * HOUR]))
        job = waiting(job_id, draw(PRIORITIES), ago_s=ago_s, runs=draw(st.sampled_from(["hour", "unknown"])))
        groups.setdefault(draw(REQUESTS), []).append(job)
    return [
        jobs_of(resources, *sorted(jobs, key=lambda one: (one.priority, one.position)))
        for resources, jobs in groups.items()
    ]


@st.composite
def cpu_groups(draw: st.DrawFn) -> list[PendingGroup]:
    """Draws groups of jobs without a GPU, whose ids are above 100."""
    count = draw(st.integers(1, 4))
    jobs = [
        waiting(100 + n, draw(PRIORITIES), ago_s=draw(st.sampled_from([0.0, 9 * HOUR]))) for n in range(count)
    ]
    jobs.sort(key=lambda one: (one.priority, one.position))
    resources = draw(st.sampled_from([CPU, ResourceSpec(gpus=0, group="b", max_running=2)]))
    return [jobs_of(resources, *jobs)]


@settings(deadline=None, max_examples=150)
@given(st.data(), situations(), waiting_groups(), cpu_groups(), LIMITS, st.integers(0, 4))
def test_jobs_on_gpus_are_placed_as_if_there_were_no_jobs_without_a_gpu(
    data: st.DataObject,
    situation: Facts,
    groups: list[PendingGroup],
    cpu: list[PendingGroup],
    limits: Settings,
    running_now: int,
) -> None:
    first = groups[0].jobs[0] if groups else waiting(50)
    more: dict[str, Any] = {
        "settings": limits,
        "overtakes": data.draw(st.sampled_from([Overtakes(), overtaken(9)])),
    }
    if data.draw(st.booleans()) and groups:
        more["queue_reservation"] = stored(first, groups[0].resources, "U0")
    if data.draw(st.booleans()):
        more["reserved_jobs"] = (ReservedJob(waiting(60, 100), HALF, ("U0",)),)
    without = replace(
        situation, pending_groups=tuple(groups), run_times=GivenTimes({"hour": exactly(HOUR)}), **more
    )
    attempts = (*situation.attempts, *(on_cpu(n, priority=300) for n in range(900, 900 + running_now)))
    both = replace(without, pending_groups=(*cpu, *groups), attempts=attempts)
    keys = {one.resources.key() for one in cpu}

    def on_gpus(actions: list[act.Action]) -> list[act.Action]:
        return [
            one
            for one in actions
            if not (isinstance(one, act.Start) and not one.gpus)
            and not (isinstance(one, act.SetWaitReason) and one.spec_key in keys)
        ]

    found, expected = place_jobs(both), place_jobs(without)
    assert on_gpus(found) == expected
    begun = [one for one, gpus in starts(found).items() if not gpus]
    assert len(begun) == min(
        max(0, 3 - running_now), sum(len(one.jobs) for one in cpu), 2 if cpu[0].resources.max_running else 9
    )
    assert queue_line(both, ["U0"]) == queue_line(without, ["U0"])


@pytest.mark.parametrize("is_reserving", [False, True])
def test_jobs_without_a_gpu_change_no_start_and_no_overtake_of_the_others(is_reserving: bool) -> None:
    limits = Settings(aging=2 if is_reserving else 1_000_000, cpu_jobs=5)
    boxes = []
    for has_cpu_jobs in (False, True):
        box = Box(facts(gpu(0), gpu(1), settings=limits, run_times=ExactTimes()))
        with_small_jobs(box)
        for number in range(12 * has_cpu_jobs):
            box.submit(100 + number, 3_700 + 1_000 * number, 990, gpus=0, share=None)
        boxes.append((box.times(), box.playback.reserved_idle_s))
    (alone, idle_s), (both, idle_beside_s) = boxes
    assert (idle_s, idle_s > 0) == (idle_beside_s, is_reserving)
    assert {job_id: times for job_id, times in both.items() if job_id < 100} == alone
    assert len(both) == len(alone) + 12


def test_a_start_without_a_gpu_does_not_wait_for_the_start_interval() -> None:
    spaced = round_of(
        2, group(CPU, 1, 2), group(HALF, 3), settings=replace(TWO, start_interval_s=5.0),
        overtakes=Overtakes((QueueStart(200, 0, 0.0, NOW.wall),)),
    )  # fmt: skip
    assert starts(plan(spaced)) == {1: (), 2: ()}


def test_a_job_that_gives_up_its_gpus_loses_its_reservations_and_starts() -> None:
    """`set JOB gpus=0` changes a job for which GPUs are reserved."""
    busy = (holder(1, "U0", runs="hour"),)
    by_order = stored(waiting(2), CPU, "U0")
    changed = round_of(1, jobs_of(CPU, waiting(2)), attempts=busy, queue_reservation=by_order)
    actions = place_jobs(changed)
    assert starts(actions) == {2: ()}
    assert [one.job_id for one in actions if isinstance(one, act.SetQueueReservation)] == [None]
    delayed = replace(changed, queue_reservation=replace(by_order, is_delayed=True), pending_groups=())
    assert starts(place_jobs(delayed)) == {}
    preempting = ReservedJob(waiting(2), CPU, ("U0",))
    assert starts(place_jobs(round_of(1, attempts=busy, reserved_jobs=(preempting,)))) == {2: ()}


def test_a_job_without_a_gpu_takes_no_part_in_preemptions() -> None:
    urgent, low = replace(WHOLE, preempt=True), on_cpu(7, priority=300)
    situation = round_of(1, jobs_of(urgent, waiting(1, 0)), attempts=(low, holder(8, priority=0)))
    assert stops_in(place_jobs(situation)) == []
    why_none = possible_preemption(situation, need_of(urgent, situation), waiting(1, 0), urgent)
    assert why_none is NoPreemption.NO_LOWER_PRIORITY
    asked = replace(situation, settings=Settings(preempt_at_priority=300))
    assert possible_preemption(asked, Need(0), waiting(1, 0), CPU) is None


@pytest.mark.parametrize("situation", [facts(), facts(gpu(0, paused=True)), UNUSABLE["reserved"]])
def test_why_has_nothing_to_say_about_gpus(situation: Facts) -> None:
    job = waiting(9)
    assert queue_outlook(situation, Need(0), job, CPU, RunTimes()) is None
    assert len(judged_gpus(situation, Need(0), job)) == len(situation.gpus)


def test_a_scheduler_is_not_drained_while_a_job_without_a_gpu_can_start() -> None:
    assert not is_drained(facts(gpu(0, paused=True)), [CPU], False)
    assert not is_drained(facts(), [CPU], False)
    assert is_drained(facts(), [WHOLE], False)


def test_a_forecast_starts_jobs_without_a_gpu_when_a_place_is_free() -> None:
    gpus: list[Gpu] = [gpu(0, paused=True), gpu(1)]
    times = GivenTimes({"hour": exactly(HOUR)})
    running_now = (replace(on_cpu(1), job_id=80), holder(2, "U1"))
    situation = facts(*gpus, attempts=running_now, settings=TWO, run_times=times)
    jobs = [WaitingJob(waiting(n, runs="hour"), CPU) for n in (11, 12, 13)]
    found = forecast(situation, jobs).jobs
    begun = {job_id: (one.start_at - NOW.wall) / HOUR for job_id, one in found.items() if job_id > 10}
    assert [begun[job_id] for job_id in (11, 12, 13)] == [0, 1, 1]
    assert not any(found[job_id].gpus for job_id in (11, 12, 13))


@pytest.mark.parametrize(
    ("job", "shown"),
    [
        (spec(), "python t.py --llm big --cuda 3"),
        (JobSpec("csv", "x", "/", script="/t.py", arguments=("--a",), gpus=0), "python -u /t.py --a"),
        (JobSpec("csv", "x", "/", script="/t.py", gpus=0, cuda="off"), "python -u /t.py"),
    ],
)
def test_the_command_gets_no_gpu_and_no_ids(job: JobSpec, shown: str) -> None:
    command = build_command(job, (), {}, "0" * 32, 7, 1, None, "physical")
    assert command.env["CUDA_VISIBLE_DEVICES"] == ""
    assert "export CUDA_VISIBLE_DEVICES=''\n" in command.command_sh
    assert (command.display_text, display_command(job, "IDS")) == (shown, shown)
    assert session_name((), "a" * 60, 7) == f"gpujob_cpu_{'a' * 27}_7"
