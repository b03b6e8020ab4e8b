"""The measurements that are recorded from a sample: memory use, overuse, foreign peaks and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, AttemptStatus
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import Action, GpuChanged, SetWaitReason, Start
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import attempt_memory, record_measurements
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.show.wait_text import wait_text
from tests.attempts import replace
from tests.core.decisions import changed_attempts, changed_gpus, end_in
from tests.core.gpu_world import facts, gpu, group, running

OURS = gpu(0, None, (GpuProcess(7, 5000), GpuProcess(8, 300), GpuProcess(6, 1)), owners={7: 9, 8: 9, 6: None})
OURS = replace(OURS, foreign_peaks={(6, 0.0): 1})
NEW = running(vram=6000, measured_boot=None)


def samples(attempt: ActiveAttempt) -> list[tuple[str, int | None, float, int]]:
    """Returns what is recorded of each GPU: its UUID, the peak, the sum of the loads and their number."""
    return [(one.gpu, one.peak_mib, one.load_sum, one.load_samples) for one in attempt.allocations]


def only_changed_attempts(actions: list[Action]) -> list[ActiveAttempt]:
    """Returns the changed attempts. There must be no other action."""
    changed = changed_attempts(actions)
    assert len(changed) == len(actions), actions
    return changed


def test_adds_up_the_memory_of_an_attempts_processes_once_per_sample() -> None:
    [measured] = changed_attempts(record_measurements(facts(OURS, attempts=(NEW,))))
    assert (measured.id, measured.measured_boot, samples(measured)) == (9, 999.0, [("U0", 5300, 0.0, 1)])
    assert record_measurements(facts(OURS, attempts=(replace(NEW, measured_boot=998.9),))) != []
    assert record_measurements(facts(OURS, attempts=(replace(NEW, measured_boot=999.0),))) == []
    assert record_measurements(facts(OURS, attempts=(replace(NEW, measured_boot=999.1),))) == []


def test_ignores_a_sample_taken_before_the_launch() -> None:
    # The deadline is 10 s after the launch, so the launch was at 999.
    assert record_measurements(facts(OURS, attempts=(replace(NEW, launch_deadline_boot=1009.0),))) != []
    assert record_measurements(facts(OURS, attempts=(replace(NEW, launch_deadline_boot=1009.1),))) == []
    sooner = Settings(launch_deadline_s=10.2)
    assert (
        record_measurements(
            facts(OURS, attempts=(replace(NEW, launch_deadline_boot=1009.1),), settings=sooner)
        )
        != []
    )


@pytest.mark.parametrize(
    ("attempt", "noted"),
    [
        (NEW, True),
        (replace(NEW, state=AttemptState.STOPPING), True),
        (replace(NEW, state=AttemptState.STARTING), False),
        (replace(NEW, state=AttemptState.ENDED), False),
        (replace(NEW, gpus=("gone",)), False),
    ],
)
def test_measures_only_running_attempts(attempt: ActiveAttempt, noted: bool) -> None:
    notes = record_measurements(facts(OURS, attempts=(attempt,)))
    assert [one.measured_boot for one in changed_attempts(notes)] == ([999.0] if noted else [])


def test_measures_the_memory_and_load_of_an_attempt_on_each_gpu() -> None:
    other = gpu(1, None, (GpuProcess(7, 40),), owners={7: 9})
    other = replace(other, sample=replace(only_sample(other), load_percent=55.0))
    both = replace(NEW, gpus=("U1", "U0", "gone"))
    [measured] = changed_attempts(record_measurements(facts(OURS, other, attempts=(both,))))
    assert samples(measured) == [("U1", 40, 55.0, 1), ("U0", 5300, 0.0, 1), ("gone", None, 0.0, 0)]


def only_sample(one: Gpu) -> GpuSample:
    assert one.sample is not None
    return one.sample


@pytest.mark.parametrize(
    "one",
    [
        replace(OURS, has_unmatched_process=True),
        replace(OURS, sample=replace(only_sample(OURS), processes=None)),
        replace(OURS, sample=replace(only_sample(OURS), processes=(GpuProcess(7, 5), GpuProcess(8, None)))),
        replace(OURS, owners={7: 1, 8: None}),
        replace(OURS, owners={}),
        gpu(0, 9000),
    ],
    ids=["unmatched", "no list", "no memory", "others", "unknown", "none is listed"],
)
def test_a_jobs_memory_is_recorded_as_unknown_if_it_cannot_be_attributed(one: Gpu) -> None:
    assert attempt_memory(NEW, one) is None
    notes = record_measurements(facts(one, attempts=(NEW,)))
    [measured] = changed_attempts(notes)
    assert (measured.measured_boot, samples(measured)) == (999.0, [("U0", None, 0.0, 1)])
    assert all(gpu.foreign_loads == one.foreign_loads for gpu in changed_gpus(notes))


def test_records_no_measurements_without_a_sample() -> None:
    assert record_measurements(facts(Gpu("U0", 0), attempts=(NEW,))) == []
    assert record_measurements(facts(replace(OURS, sampled_boot=None), attempts=(NEW,))) == []


@pytest.mark.parametrize(
    ("declared", "tolerance", "reported"),
    [
        (4818, 0.1, True),
        (4819, 0.1, False),
        (5300, 0.0, False),
        (5299, 0.0, True),
        (3000, 0.9, False),
        (None, 0.1, False),
    ],
)
def test_records_memory_overuse_only_above_the_tolerance(
    declared: int | None, tolerance: float, reported: bool
) -> None:
    attempt = running(vram=declared, share=0 if declared else 250, measured_boot=None)
    notes = record_measurements(facts(OURS, attempts=(attempt,), settings=Settings(tolerance=tolerance)))
    [measured] = changed_attempts(notes)
    assert (measured.overused_gpus, measured.peaks) == (("U0",) if reported else (), {"U0": 5300})
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("used", "share", "values", "reported"),
    [
        # A quarter of 24 GiB is 6144 MiB, and up to 6758.4 MiB are tolerated.
        (6759, 250, {}, 6144),
        (6758, 250, {}, None),
        (16_000, 500, {}, 12_288),
        (24_576, 1000, {}, None),
        # A job that declared a share but has the GPU to itself may use all of its memory.
        (16_000, 250, {"whole": True}, None),
        # If a job declares both a share and memory, only the memory is judged.
        (16_000, 250, {"vram": 18_000}, None),
        (16_000, 750, {"vram": 8192}, 8192),
        # A job cannot overuse a default share, or a share of a GPU of unknown size.
        (16_000, 250, {"budgets": {}}, None),
        (16_000, 0, {"vram": 8192, "budgets": {}}, None),
        (16_000, 250, {"budgets": {"U0": None}}, None),
        (16_000, 250, {"overused_gpus": ("U0",)}, None),
    ],
)
def test_records_overuse_above_the_memory_that_a_declared_share_stands_for(
    used: int, share: int, values: dict[str, Any], reported: int | None
) -> None:
    one = gpu(0, None, (GpuProcess(7, used),), owners={7: 9})
    attempt = running(share=share, measured_boot=None, **values)
    [measured] = changed_attempts(record_measurements(facts(one, attempts=(attempt,))))
    new = [gpu for gpu in measured.overused_gpus if gpu not in attempt.overused_gpus]
    assert (new, measured.peaks) == ([] if reported is None else ["U0"], {"U0": used})
    assert reported is None or measured.budgets == {"U0": reported}


def test_judges_the_memory_use_of_a_share_by_the_size_of_each_gpu() -> None:
    small, large = (gpu(n, None, (GpuProcess(7, 9000),), owners={7: 9}) for n in (0, 1))
    both = running(9, "U0", "U1", share=250, measured_boot=None, budgets={"U0": 6144, "U1": 20_480})
    [measured] = changed_attempts(record_measurements(facts(small, large, attempts=(both,))))
    assert measured.overused_gpus == ("U0",)


def test_an_overused_share_counts_at_its_buffered_peak() -> None:
    """A quarter share that uses 16,000 MiB counts as 17,600, so a job with 12 GiB does not fit beside it."""
    over = gpu(0, None, (GpuProcess(7, 16_000),), owners={7: 9})
    first = running(share=250, measured_boot=None)
    world = facts(over, attempts=(first,), pending_groups=(group(ResourceSpec(vram=12_288), 1),))
    assert [one.overused_gpus for one in only_changed_attempts(plan(world))] == [("U0",)]
    [wait] = plan(applied(world, plan(world)))
    assert isinstance(wait, SetWaitReason)
    assert wait_text(wait.reason) == "needs 12.0 GiB of a GPU, 0 free (GPU 0: room for 6.3 GiB)"


def test_records_overuse_once_per_gpu_and_only_for_a_new_sample() -> None:
    other = replace(OURS, uuid="U1", index=1)
    small = running(9, "U0", "U1", vram=100, measured_boot=None)
    [measured] = changed_attempts(record_measurements(facts(OURS, other, attempts=(small,))))
    assert measured.overused_gpus == ("U0", "U1")
    once = replace(small, overused_gpus=("U1",))
    [again] = changed_attempts(record_measurements(facts(OURS, other, attempts=(once,))))
    assert again.overused_gpus == ("U0", "U1")
    assert record_measurements(facts(OURS, other, attempts=(replace(small, measured_boot=999.0),))) == []
    assert record_measurements(facts(OURS, other, attempts=(measured,))) == []


def test_overuse_is_not_reported_again_after_a_sample_without_it() -> None:
    low = gpu(0, None, (GpuProcess(7, 10),), owners={7: 9})
    reported = running(vram=100, measured_boot=None, overused_gpus=("U0",))
    [measured] = changed_attempts(record_measurements(facts(low, attempts=(reported,))))
    assert measured.overused_gpus == ("U0",)


def test_records_foreign_peaks_only_when_they_change() -> None:
    two = gpu(
        0, None, (GpuProcess(8, 30), GpuProcess(7, 50)), process_starts={7: 1.5}, foreign_peaks={(9, 2.5): 5}
    )
    peaks = {(7, 1.5): 50, (8, 0.0): 30, (9, 2.5): 5}
    assert record_measurements(facts(two)) == [GpuChanged(two, replace(two, foreign_peaks=peaks))]
    assert (
        record_measurements(facts(replace(two, foreign_peaks={(9, 2.5): 5, (7, 1.5): 50, (8, 0.0): 30})))
        == []
    )
    assert (
        record_measurements(facts(replace(two, foreign_peaks={(9, 2.5): 5, (7, 1.5): 49, (8, 0.0): 31})))
        != []
    )
    for unknown in (replace(two, has_unmatched_process=True), replace(two, sample=None), gpu(0, 5, None)):
        assert record_measurements(facts(unknown)) == []


@pytest.mark.parametrize(
    ("noted", "at", "after"),
    [
        ((), None, (40.0,)),
        ((90.0,), 998.0, (90.0, 40.0)),
        ((None, 90.0, 80.0), 998.0, (90.0, 80.0, 40.0)),
        ((40.0, 40.0), 998.0, (40.0, 40.0, 40.0)),
        # The machine has been rebooted since the last recorded load.
        ((90.0,), 5000.0, (90.0, 40.0)),
        # Nothing is recorded if the sample already has been, or if the loads have not changed.
        ((90.0,), 999.0, None),
        ((40.0, 40.0, 40.0), 998.0, None),
    ],
)
def test_records_the_foreign_load_of_a_sample_only_once(
    noted: tuple[float | None, ...], at: float | None, after: tuple[float | None, ...] | None
) -> None:
    one = gpu(0, None, (GpuProcess(8, 30, load_percent=40.0),), foreign_peaks={(8, 0.0): 30})
    one = replace(one, foreign_loads=noted, foreign_load_boot=at)
    recorded = [
        (gpu.foreign_loads, gpu.foreign_load_boot) for gpu in changed_gpus(record_measurements(facts(one)))
    ]
    assert recorded == ([] if after is None else [(after, 999.0)])


def test_records_memory_overuse_before_placing_jobs() -> None:
    """The first job exceeds its declaration. The next job would fit by the declarations alone, but waits."""
    over = gpu(0, None, (GpuProcess(7, 16_000),), owners={7: 9})
    first = running(vram=10_000, measured_boot=None)
    world = facts(over, attempts=(first,), pending_groups=(group(ResourceSpec(vram=10_000), 1),))
    assert [one.overused_gpus for one in only_changed_attempts(plan(world))] == [("U0",)]
    world = applied(world, plan(world))
    actions = plan(world)
    assert [type(a).__name__ for a in actions] == ["SetWaitReason"]
    fits = facts(
        gpu(0, None, (GpuProcess(7, 9000),), owners={7: 9}),
        attempts=(first,),
        pending_groups=world.pending_groups,
    )
    assert isinstance(plan(applied(fits, plan(fits)))[0], Start)


def test_records_a_peak_within_the_tolerance_before_placing_jobs() -> None:
    above = gpu(0, None, (GpuProcess(7, 10_500),), owners={7: 9})
    world = facts(
        above,
        attempts=(running(vram=10_000, measured_boot=None),),
        pending_groups=(group(ResourceSpec(vram=13_000), 1),),
    )
    assert [one.overused_gpus for one in only_changed_attempts(plan(world))] == [()]
    # Now 11,550 MiB are committed for the job, although it uses only 10,500 MiB.
    assert [type(a).__name__ for a in plan(applied(world, plan(world)))] == ["SetWaitReason"]


def test_records_the_last_sample_of_an_attempt_before_its_end_is_recorded() -> None:
    done = AttemptStatus("dead", result=AttemptResult(None, 0, None, True, None, (), 1.0, 2.0))
    actions = plan(facts(OURS, attempts=(replace(NEW, status=done),)))
    measured, end = only_changed_attempts(actions)
    assert (measured.state, samples(measured)) == (AttemptState.RUNNING, [("U0", 5300, 0.0, 1)])
    assert (end_in(actions), end.peaks) == (end, {"U0": 5300})


def applied(world: Facts, actions: Sequence[Action]) -> Facts:
    """Returns the facts after these actions have been recorded."""
    attempts = {attempt.id: attempt for attempt in world.attempts}
    gpus = {one.uuid: one for one in world.gpus}
    attempts |= {one.id: one for one in changed_attempts(actions)}
    gpus |= {one.uuid: one for one in changed_gpus(actions)}
    return replace(world, gpus=tuple(gpus.values()), attempts=tuple(attempts.values()))


PROCESSES = st.lists(
    st.builds(GpuProcess, st.integers(1, 5), st.none() | st.integers(0, 9000), st.booleans()),
    max_size=4,
    unique_by=lambda process: process.pid,
)
GPUS = st.builds(
    lambda index, processes, owners, starts, held, unmatched: gpu(
        index,
        None,
        tuple(processes),
        owners=owners,
        process_starts=starts,
        foreign_peaks=held,
        has_unmatched_process=unmatched,
    ),
    st.just(0),
    PROCESSES,
    st.dictionaries(st.integers(1, 5), st.sampled_from([None, 1, 2])),
    st.dictionaries(st.integers(1, 5), st.sampled_from([1.5, 2.25])),
    st.dictionaries(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.5, 2.25])), st.integers(0, 9000)),
    st.booleans(),
)


@settings(deadline=None)
@given(GPUS, GPUS, st.integers(1, 9000), st.none() | st.sampled_from([998.0, 999.0]))
def test_does_not_record_measurements_of_the_same_sample_again(
    one: Gpu, two: Gpu, declared: int, measured_at: float | None
) -> None:
    two = replace(two, uuid="U1", index=1)
    attempts = (
        running(1, "U0", "U1", vram=declared, measured_boot=measured_at),
        running(2, "U1", share=500, measured_boot=measured_at),
    )
    world = facts(one, two, attempts=attempts)
    assert record_measurements(applied(world, record_measurements(world))) == []
