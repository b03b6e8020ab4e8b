"""Random scenes of jobs and foreign processes on a few GPUs, in which a job starts if and only if it fits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.settings import Settings
from tests.core.packing import ForeignProcessPlan, JobPlan, Machine, Scene

TICKS = 8
ALLOWED = st.sampled_from([None, None, None, (0,), (1, 2)])
SHARES = st.sampled_from([100, 333, 500, 1000])
COUNTS = st.sampled_from([None, None, 1, 2])
MIB = st.sampled_from([300, 2000, 6000, 9000, 14_336, 20_000])
FLAG = st.sampled_from([False, False, False, True])
BY_MEMORY = st.builds(
    lambda vram, gpus, allowed, exclusive: ResourceSpec(None, gpus, None, True, allowed, vram, exclusive),
    MIB, COUNTS, ALLOWED, FLAG,
)  # fmt: skip
BY_SHARE = st.builds(
    lambda share, gpus, allowed, exclusive: ResourceSpec(share, gpus, None, True, allowed, None, exclusive),
    SHARES, COUNTS, ALLOWED, FLAG,
)  # fmt: skip
BY_BOTH = st.builds(lambda vram, share: ResourceSpec(share, None, None, True, None, vram), MIB, SHARES)
UNDECLARED = st.builds(lambda gpus, allowed: ResourceSpec(None, gpus, None, True, allowed), COUNTS, ALLOWED)
ANY = BY_MEMORY | BY_SHARE | BY_BOTH | UNDECLARED


def jobs(specs: st.SearchStrategy[ResourceSpec], most_percent: int) -> st.SearchStrategy[tuple[JobPlan, ...]]:
    uses = st.lists(st.integers(0, most_percent), min_size=1, max_size=3).map(tuple)
    one = st.builds(JobPlan, specs, st.integers(0, 5), st.integers(1, 5), uses)
    return st.lists(one, min_size=1, max_size=8).map(tuple)


FOREIGN_PROCESSES = st.lists(
    st.builds(
        ForeignProcessPlan,
        st.integers(0, 2),
        st.integers(0, 7),
        st.integers(1, 8),
        st.lists(st.sampled_from([None, 0, 60, 200, 1000, 7000, 21_000]), min_size=1, max_size=4).map(tuple),
        FLAG,
    ),
    max_size=3,
).map(tuple)


def by_tick(values: Sequence[float]) -> st.SearchStrategy[tuple[tuple[float, ...], ...]]:
    """Draws one value for each tick and GPU.

    Drawing them as bytes is ten times faster than separate draws.
    """

    def spread(drawn: bytes) -> tuple[tuple[float, ...], ...]:
        picked = [values[byte % len(values)] for byte in drawn]
        return tuple(tuple(picked[at : at + 3]) for at in range(0, len(picked), 3))

    return st.binary(min_size=3 * TICKS, max_size=3 * TICKS).map(spread)


def scenes(
    specs: st.SearchStrategy[ResourceSpec],
    most_percent: int,
    foreign_processes: st.SearchStrategy[tuple[ForeignProcessPlan, ...]] = FOREIGN_PROCESSES,
) -> st.SearchStrategy[Scene]:
    return st.builds(
        Scene,
        st.lists(st.sampled_from([8192, 24_576, 24_576, 49_152]), min_size=1, max_size=3).map(tuple),
        st.sampled_from([0, 0, 300]),
        jobs(specs, most_percent),
        foreign_processes,
        st.lists(st.sampled_from([True, True, False]), min_size=TICKS, max_size=TICKS).map(tuple),
        by_tick([0.0, 50.0, 79.9, 80.0, 97.0]),
        by_tick([False, False, False, False, True]),
    )


@settings(deadline=None, max_examples=200)
@given(scenes(ANY, 100), st.booleans())
def test_exactly_the_jobs_that_fit_are_started(scene: Scene, exclusive: bool) -> None:
    machine = Machine(scene, Settings(exclusive=exclusive))
    machine.play()  # This checks every start and, at each tick, every waiting job.
    assert machine.starts + len(machine.queued) == len(scene.jobs)


@settings(deadline=None, max_examples=200)
@given(scenes(ANY, 220))
def test_memory_overuse_is_reported_and_added_to_the_committed_memory(scene: Scene) -> None:
    machine = Machine(scene)
    machine.play()
    assert machine.starts + len(machine.queued) == len(scene.jobs)


#: Foreign processes that exist in the first sample and never exceed the buffered peak of that sample.
STEADY = st.lists(
    st.builds(
        lambda gpu, mib, parts: ForeignProcessPlan(
            gpu, 0, TICKS, (mib, *(mib * part // 100 for part in parts))
        ),
        st.integers(0, 2),
        st.integers(0, 12_000),
        st.lists(st.integers(0, 110), max_size=4),
    ),
    max_size=3,
).map(tuple)


class WatchedMachine(Machine):
    """A machine that checks after every tick that declared and used memory do not exceed a GPU's size."""

    def check_invariants(self) -> None:
        super().check_invariants()
        for index, total in enumerate(self.scene.totals):
            here = [
                one
                for one in self.running.values()
                if f"U{index}" in one.attempt.gpus and one.attempt.state.is_open
            ]
            used = self.scene.unattributed_mib + sum(
                stranger.use(self.tick) or 0
                for stranger in self.scene.foreign_processes
                if stranger.gpu == index
            )
            declared = sum(one.attempt.vram or 0 for one in here)
            assert not here or declared + used <= total
            assert not here or sum(self.usage(one, index) or 0 for one in here) + used <= total


@settings(deadline=None, max_examples=200)
@given(scenes(BY_MEMORY | BY_BOTH, 100, STEADY))
def test_jobs_that_stay_within_their_declarations_never_exceed_the_memory_of_a_gpu(scene: Scene) -> None:
    machine = WatchedMachine(replace(scene, sampled=(True, *scene.sampled[1:])))
    machine.play()
    assert machine.starts + len(machine.queued) == len(scene.jobs)


@pytest.mark.parametrize("sampled", [(True,) * TICKS, (True, False, False, False, True, True, True, True)])
@pytest.mark.parametrize("order", [(0, 0, 0), (0, 0, 1), (2, 1, 0)])
def test_the_third_of_three_large_jobs_waits_until_one_of_two_gpus_is_free(
    order: tuple[int, ...], sampled: tuple[bool, ...]
) -> None:
    large = [
        JobPlan(ResourceSpec(None, None, None, True, None, 14_336), comes, 3, (10, 60, 100))
        for comes in order
    ]
    nothing, loads = ((False,) * 3,) * TICKS, ((97.0,) * 3,) * TICKS
    machine = WatchedMachine(Scene((24_576, 24_576), 0, tuple(large), (), sampled, loads, nothing))
    machine.play()
    assert machine.starts == 3
    assert machine.queued == {}
