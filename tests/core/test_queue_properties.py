"""Random queues: a reservation is kept, nothing fits twice, and without late jobs all is as with backfill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import event, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.scheduling.history import Estimate
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from tests.attempts import replace
from tests.core.queue_player import STEP_S, PlannedJob, Player
from tests.core.queue_world import GivenTimes, exactly

GPUS = 3
BACKFILL = Settings(queue_order=QueueOrder.BACKFILL)
COUNTS = st.sampled_from([1, 1, 1, 2, 3])
FLAG = st.sampled_from([False, False, False, True])
ALLOWED = st.sampled_from([None, None, None, (0, 1), (1, 2)])
SHARES = st.builds(
    lambda share, gpus, exclusive: ResourceSpec(share=share, gpus=gpus, exclusive=exclusive),
    st.sampled_from([300, 500, 1000, 1000]), COUNTS, FLAG,
)  # fmt: skip
MEMORY = st.builds(
    lambda mib, gpus, allowed: ResourceSpec(vram=mib, gpus=min(gpus, 2), allowed=allowed),
    st.sampled_from([5000, 11_000, 20_000]), COUNTS, ALLOWED,
)  # fmt: skip
PINNED = st.builds(
    lambda gpus, allowed: ResourceSpec(share=1000, gpus=min(gpus, 2), allowed=allowed), COUNTS, ALLOWED
)
#: Thirty steps are two and a half hours, so that many jobs come more than an hour after others.
JOBS = st.lists(
    st.builds(
        PlannedJob, SHARES | MEMORY | PINNED, st.integers(0, 30), st.integers(1, 24),
        st.sampled_from([100, 200, 200, 200]),
    ),
    min_size=2, max_size=14,
)  # fmt: skip
AGING = st.sampled_from([0, 0, 1, 2])


def exact(jobs: Sequence[PlannedJob]) -> GivenTimes:
    """Returns the estimates of jobs whose run times are known exactly."""
    return GivenTimes({str(n): exactly(STEP_S * job.runs) for n, job in enumerate(jobs, 1)})


@settings(deadline=None, max_examples=100)
@given(JOBS, AGING)
def test_a_reserved_job_is_not_delayed_by_later_ones_if_estimates_are_exact(
    jobs: list[PlannedJob], aging: int
) -> None:
    player = Player(GPUS, jobs, Settings(aging=aging), exact(jobs))
    player.play()
    assert len(player.started) == len(jobs)
    kept = 0
    for promise in player.promises:
        since = player.begun[promise.starts_before :]
        mine = next(n for n, one in enumerate(since) if one.position == promise.job.job_id)
        key = promise.job.priority, promise.job.position
        if any((one.priority, one.position) < key for one in since[:mine]):
            continue  # a job before it in the queue has taken GPUs
        if promise.is_kept:
            kept += 1
            assert player.started[promise.job.job_id] <= promise.start
        else:
            # Only an earlier job that has been overtaken too often takes a reservation over.
            assert any((one.job.priority, one.job.position) < key for one in player.promises)
    event(f"reservations: {min(kept, 3)}")


#: How wrong the prediction of a job is, and the sorted ratios that are known of its class.
ERRORS = st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0, None])
RATIOS = st.sampled_from([(), (1.0,) * 5, (0.2, 0.5, 1.0, 1.5, 3.0), (0.01, 0.02, 0.05, 5.0, 20.0)])


@st.composite
def wrong(draw: st.DrawFn, jobs: Sequence[PlannedJob]) -> GivenTimes:
    """Draws estimates of which most are wrong; of some jobs, nothing is known."""
    times: dict[str, Estimate] = {}
    for n, job in enumerate(jobs, 1):
        error, timeout = draw(ERRORS), draw(st.sampled_from([None, None, STEP_S * job.runs]))
        predicted = None if error is None else error * STEP_S * job.runs
        times[str(n)] = Estimate(predicted, draw(RATIOS), timeout)
    return GivenTimes(times)


CLOSED = st.dictionaries(
    st.integers(0, 40), st.frozensets(st.integers(0, GPUS - 1), min_size=1, max_size=2), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(st.data(), JOBS, AGING, CLOSED)
def test_all_jobs_run_and_no_two_overlap_however_wrong_the_estimates_are(
    data: st.DataObject, jobs: list[PlannedJob], aging: int, closed: Mapping[int, frozenset[int]]
) -> None:
    """The player checks every start against both accounts."""
    player = Player(GPUS, jobs, Settings(aging=aging), data.draw(wrong(jobs)), closed)
    player.play()
    assert len(player.started) == len(jobs)
    event(f"reservations: {min(len(player.promises), 3)}")


def starts_of(
    jobs: Sequence[PlannedJob], settings: Settings, times: GivenTimes, closed: Mapping[int, frozenset[int]]
) -> dict[int, int]:
    """Returns the step in which each job starts."""
    player = Player(GPUS, jobs, settings, times, closed)
    player.play()
    return player.started


@settings(deadline=None, max_examples=40)
@given(JOBS, AGING, CLOSED)
def test_without_expected_ends_nothing_is_reserved(
    jobs: list[PlannedJob], aging: int, closed: Mapping[int, frozenset[int]]
) -> None:
    endless = GivenTimes({str(n): Estimate(math.inf) for n in range(1, len(jobs) + 1)})
    reserving = starts_of(jobs, Settings(aging=aging), endless, closed)
    assert reserving == starts_of(jobs, BACKFILL, endless, closed)


@settings(deadline=None, max_examples=40)
@given(JOBS, st.booleans())
def test_a_batch_is_packed_as_with_backfill(jobs: list[PlannedJob], is_known: bool) -> None:
    """All jobs come within 55 minutes."""
    batch = [replace(job, comes=job.comes % 12) for job in jobs]
    times = exact(batch) if is_known else GivenTimes()
    assert starts_of(batch, Settings(aging=1), times, {}) == starts_of(batch, BACKFILL, times, {})


@settings(deadline=None, max_examples=40)
@given(JOBS, CLOSED)
def test_without_overtakes_the_order_is_that_of_backfill(
    jobs: list[PlannedJob], closed: Mapping[int, frozenset[int]]
) -> None:
    never = Settings(aging=1_000_000)
    assert starts_of(jobs, never, exact(jobs), closed) == starts_of(jobs, BACKFILL, exact(jobs), closed)
