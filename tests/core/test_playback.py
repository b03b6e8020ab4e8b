"""Tests of the playback: worked examples, the accounts of its GPUs, and its decisions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuProcess
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling import forecast as module
from gpu_scheduler.core.scheduling.actions import Action, RecordGpuTime
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.forecast import Playback, Run
from gpu_scheduler.core.scheduling.history import Estimate, RunTimeKey
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from tests.attempts import replace
from tests.core.gpu_world import NOW, TOTAL, facts, gpu, group, running

SPEC_JSON = JobSpec("command", "train", "/w", command="train").to_json()
BACKFILL = Settings(queue_order=QueueOrder.BACKFILL)


class ExactTimes:
    """Estimates that are right; the identity of a job is its run time."""

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        return Estimate() if key is None else Estimate(float(key.identity), (1.0,) * 5)


class Box:
    """A playback of jobs whose times are in seconds since its beginning."""

    def __init__(self, start: Facts, **ends: float) -> None:
        by_id = {int(name[1:]): NOW.wall + at for name, at in ends.items()}
        self.durations: dict[int, float] = {}
        self.playback = Playback(start, lambda job: self.durations[job.job_id], by_id)

    def submit(
        self, job_id: int, at: float, duration: float, gpus: int = 1, priority: int = 200, **resources: object
    ) -> None:
        wall = NOW.wall + at
        self.durations[job_id] = duration
        spec = replace(ResourceSpec(share=1000, gpus=gpus), **resources)
        job = QueuedJob(job_id, priority, job_id, wall, wall, RunTimeKey(str(duration), SPEC_JSON))
        self.playback.submit(job, spec, wall)

    def play(self) -> list[Run]:
        return list(self.playback.play())

    def times(self) -> dict[int, tuple[float, float]]:
        return {run.job_id: (run.started_at - NOW.wall, run.ended_at - NOW.wall) for run in self.play()}


def test_jobs_follow_each_other_on_one_gpu() -> None:
    box = Box(facts(gpu(0)))
    box.submit(1, 0, 100)
    box.submit(2, 10, 50)
    box.submit(3, 500, 5)
    assert box.times() == {1: (0, 100), 2: (100, 150), 3: (500, 505)}


def test_jobs_share_a_gpu_as_far_as_their_shares_allow() -> None:
    box = Box(facts(gpu(0)))
    for job_id in (1, 2, 3):
        box.submit(job_id, 0, 100 * job_id, share=500)
    assert box.times() == {1: (0, 100), 2: (0, 200), 3: (100, 400)}


def test_jobs_behind_a_large_one_overtake_it() -> None:
    box = Box(facts(gpu(0), gpu(1)))
    box.submit(1, 0, 100)
    box.submit(2, 1, 100, gpus=2)
    box.submit(3, 2, 500)
    assert box.times() == {1: (0, 100), 2: (502, 602), 3: (2, 502)}


def with_small_jobs(box: Box) -> None:
    """Job 1 runs for 10,000 s, job 2 needs both GPUs, and small jobs follow each other on the second one."""
    box.submit(1, 0, 10_000)
    box.submit(2, 10, 100, gpus=2)
    for number in range(12):
        box.submit(3 + number, 3_700 + 1_000 * number, 990)


def test_gpus_are_reserved_for_a_job_that_has_been_overtaken_too_often() -> None:
    box = Box(facts(gpu(0), gpu(1), settings=Settings(aging=2), run_times=ExactTimes()))
    with_small_jobs(box)
    times = box.times()
    # Job 8, of 8700 s, still ends before 10,000 s. Job 9, of 9700 s, does not, so it waits for job 2.
    assert times[8] == (8_700, 9_690)
    assert times[2] == (10_000, 10_100)
    assert times[9] == (10_100, 11_090)


def test_without_reservations_the_job_waits_until_no_small_job_runs() -> None:
    box = Box(facts(gpu(0), gpu(1), settings=BACKFILL, run_times=ExactTimes()))
    with_small_jobs(box)
    assert box.times()[2][0] == 10_690


def test_idle_time_on_reserved_gpus_is_counted() -> None:
    box = Box(facts(gpu(0), gpu(1), settings=Settings(aging=2, idle_budget=1.0), run_times=ExactTimes()))
    with_small_jobs(box)
    box.play()
    # The reservation begins at 4700 s, with the second start. The second GPU is then idle for 10 s after
    # each of the next four jobs, and after the last of them, at 9690 s, until 10,000 s.
    assert box.playback.reserved_idle_s == pytest.approx(4 * 10 + 310)


def test_running_attempts_end_when_they_are_said_to() -> None:
    held = running(7, "U0", share=1000), running(8, "U1", share=1000)
    box = Box(facts(gpu(0), gpu(1), attempts=held), a7=60)
    box.submit(1, 0, 10)
    box.submit(2, 0, 10, gpus=2)
    assert box.times() == {70: (0, 60), 1: (60, 70)}
    assert [job.job_id for job in box.playback.waiting] == [2]
    assert [one.id for one in box.playback.running] == [8]


def test_the_memory_of_an_attempt_is_free_when_it_ends() -> None:
    used = TOTAL - 1000
    used_gpu = gpu(0, used, (GpuProcess(5, used - 500), GpuProcess(6, 500)), owners={5: 7, 6: None})
    held = running(7, "U0", vram=used - 500)
    box = Box(facts(used_gpu, attempts=(held,)), a7=60)
    box.submit(1, 0, 10, share=None, vram=20_000)
    box.submit(2, 0, 10, share=None, vram=TOTAL - 600)  # the foreign process keeps it off
    assert box.times() == {70: (0, 60), 1: (60, 70)}
    assert [job.job_id for job in box.playback.waiting] == [2]


def test_a_preempted_job_is_queued_again() -> None:
    box = Box(facts(gpu(0)))
    box.submit(1, 0, 1_000)
    box.submit(2, 100, 50, priority=0, preempt=True)
    runs = box.play()
    assert [(run.job_id, run.started_at - NOW.wall, run.ended_at - NOW.wall) for run in runs] == [
        (1, 0, 100),
        (2, 100, 150),
        (1, 150, 1_150),
    ]
    assert [run.is_preempted for run in runs] == [True, False, False]


def test_a_preempted_attempt_of_the_beginning_is_queued_again() -> None:
    box = Box(
        facts(gpu(0), attempts=(running(7, "U0", share=1000, priority=200, started_at=NOW.wall - 500),))
    )
    box.durations[70] = 30
    box.submit(2, 100, 50, priority=0, preempt=True)
    assert box.times()[70] == (150, 180)


def test_jobs_may_be_submitted_while_it_plays() -> None:
    box = Box(facts(gpu(0)))
    box.submit(1, 0, 100)
    runs = []
    for run in box.playback.play():
        runs.append(run)
        if run.job_id < 3:
            box.submit(run.job_id + 1, run.ended_at - NOW.wall, 10)
    assert [run.ended_at - NOW.wall for run in runs] == [100, 110, 120]


def test_the_waiting_jobs_of_the_facts_are_played() -> None:
    spec = ResourceSpec(share=1000)
    playback = Playback(facts(gpu(0), pending_groups=(group(spec, 1, (2, 100)),)), lambda job: 10.0)
    assert [run.job_id for run in playback.play()] == [2, 1]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 30_000),
        st.integers(1, 20_000),
        st.integers(1, 3),
        st.sampled_from([(250, None), (500, None), (1000, None), (None, 6_000), (None, 14_000)]),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(JOBS, st.booleans())
def test_no_gpu_is_overfull_and_every_decision_is_that_of_plan(
    jobs: list[tuple[int, int, int, tuple[int | None, int | None]]], knows_times: bool
) -> None:
    def decide(seen: Facts) -> list[Action]:
        decided = place_jobs(seen)
        assert [action for action in plan(seen) if not isinstance(action, RecordGpuTime)] == decided
        return decided

    start = facts(*map(gpu, range(3)), settings=Settings(aging=1))
    box = Box(replace(start, run_times=ExactTimes()) if knows_times else start)
    sizes = {}
    for number, (at, duration, gpus, (share, vram)) in enumerate(jobs, 1):
        box.submit(number, at, duration, gpus, share=share, vram=vram)
        sizes[number] = share or 0, vram or 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "place_jobs", decide)
        runs = box.play()
    assert sorted(run.job_id for run in runs) == sorted(sizes)
    for run in runs:
        for uuid in run.gpus:
            beside = [
                sizes[one.job_id]
                for one in runs
                if uuid in one.gpus and one.started_at <= run.started_at < one.ended_at
            ]
            assert sum(share for share, _ in beside) <= 1000
            assert sum(vram for _, vram in beside) <= TOTAL - Settings().margin_mib
