"""Forecasts of the queue, with times computed by hand."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.forecast import Forecast, WaitingJob, forecast
from gpu_scheduler.core.scheduling.history import ClassRunTimes, Estimate, RunTimeKey, RunTimes
from gpu_scheduler.core.scheduling.needs import ResourceSpec, workload_class_of
from tests.attempts import replace
from tests.core.gpu_world import gpu, round_of, running

WHOLE, TWO = ResourceSpec(share=1000), ResourceSpec(gpus=2, share=1000)
HALF = ResourceSpec(share=500)


def key(program: str, timeout_s: float | None = None) -> RunTimeKey:
    spec = JobSpec(kind="command", text=program, cwd="/", command=program, timeout_s=timeout_s)
    return RunTimeKey(program, spec.to_json())


def learned(**runs: tuple[float, ...]) -> RunTimes:
    """Returns the run times of programs. All runs of a program have the same identity."""
    return RunTimes(
        {
            workload_class_of(JobSpec.from_json(key(program).spec_json)): ClassRunTimes(
                tuple((program, seconds) for seconds in listed)
            )
            for program, listed in runs.items()
        }
    )


#: `even` always takes 100 s. One in four runs of `wide` takes 100 s, two take 200 s, and one takes 300 s.
TIMES = learned(even=(100.0,) * 20, wide=(200.0, *(100.0, 200.0, 200.0, 300.0) * 10))


def waits(job_id: int, program: str, resources: ResourceSpec = WHOLE, *parents: int) -> WaitingJob:
    return WaitingJob(QueuedJob(job_id, 200, job_id, run_time=key(program)), resources, parents)


def runs(job_id: int, program: str, uuid: str, age_s: float, left_s: float | None = None) -> ActiveAttempt:
    """Returns an attempt on a whole GPU that has run for age_s seconds. left_s: as its progress shows."""
    attempt = running(job_id, uuid, share=1000)
    return replace(attempt, job_id=job_id, started_at=NOW - age_s, run_time=key(program), remaining_s=left_s)


NOW = round_of(1).now.wall


def box(gpus: int, *attempts: ActiveAttempt) -> Facts:
    return replace(round_of(gpus, attempts=attempts), run_times=TIMES)


def times(found: Forecast) -> dict[int, tuple[float, float]]:
    """Returns the start and the end of each job in seconds from now."""
    return {job: (one.start_at - NOW, one.end_at - NOW) for job, one in sorted(found.jobs.items())}


def upper(found: Forecast) -> dict[int, tuple[float | None, float | None]]:
    return {
        job: tuple(None if at is None else at - NOW for at in (one.start_upper_at, one.end_upper_at))  # type: ignore[misc]
        for job, one in sorted(found.jobs.items())
    }


def test_waiting_jobs_follow_the_ones_that_run() -> None:
    found = forecast(box(2, runs(1, "even", "U0", 40), runs(2, "even", "U1", 10)), [
        waits(3, "even"), waits(4, "even"), waits(5, "even"),
    ])  # fmt: skip
    assert times(found) == {1: (-40, 60), 2: (-10, 90), 3: (60, 160), 4: (90, 190), 5: (160, 260)}
    assert upper(found) == times(found)
    assert [found.jobs[job].gpus for job in (3, 4, 5)] == [("U0",), ("U1",), ("U0",)]
    assert all(one.has_estimate for one in found.jobs.values())
    assert (found.idle_share, found.idle_until) == (0.0, NOW + 160)


def test_the_idle_share_ends_when_the_last_waiting_job_starts() -> None:
    found = forecast(box(2, runs(1, "even", "U0", 40)), [waits(3, "even", TWO)])
    # GPU 1 is idle until GPU 0 becomes free.
    assert times(found)[3] == (60, 160)
    assert found.idle_share == pytest.approx(0.5)
    assert found.idle_until == NOW + 60
    assert forecast(box(2), [waits(3, "even", TWO)]).idle_share is None


def test_jobs_that_share_a_gpu_make_it_busy_once() -> None:
    found = forecast(box(1), [waits(1, "even", HALF), waits(2, "even", HALF), waits(3, "even")])
    assert times(found) == {1: (0, 100), 2: (0, 100), 3: (100, 200)}
    assert found.idle_share == 0.0


def test_upper_times_are_those_of_a_queue_in_which_every_job_takes_long() -> None:
    found = forecast(box(1, runs(1, "wide", "U0", 150)), [waits(2, "wide"), waits(3, "even")])
    # Of the runs that take more than 150 s, the median takes 200 s, and nine of ten take at most 300 s.
    assert times(found) == {1: (-150, 50), 2: (50, 250), 3: (250, 350)}
    assert upper(found) == {1: (-150, 150), 2: (150, 450), 3: (450, 550)}


def test_a_job_that_reports_progress_ends_as_its_progress_says() -> None:
    found = forecast(box(1, runs(1, "wide", "U0", 150, 20)), [waits(2, "even")])
    assert times(found) == upper(found) == {1: (-150, 20), 2: (20, 120)}
    assert found.jobs[1].has_estimate


def test_a_job_without_an_estimate_counts_with_a_guess() -> None:
    found = forecast(
        box(2, runs(1, "even", "U0", 40), runs(2, "other", "U1", 1000)),
        [waits(3, "even"), waits(4, "even", replace(WHOLE, allowed=(0,)))],
    )
    assert times(found) == {1: (-40, 60), 2: (-1000, 1000), 3: (60, 160), 4: (160, 260)}
    assert [job for job, one in found.jobs.items() if not one.has_estimate] == [2]
    # If nothing is known, the upper time is twice the median.
    assert upper(found) == {**times(found), 2: (-1000, 2000)}


def test_a_job_without_an_estimate_counts_as_the_runs_of_all_jobs_if_there_are_enough() -> None:
    other = runs(1, "other", "U0", 0)
    found = forecast(box(1, other), [waits(2, "wide"), waits(3, "other")], pooled=TIMES.pooled())
    # Of all 61 runs, the median takes 200 s, and nine of ten take at most 300 s.
    assert times(found) == {1: (0, 200), 2: (200, 400), 3: (400, 600)}
    assert upper(found) == {1: (0, 300), 2: (300, 600), 3: (600, 900)}
    assert [job for job, one in found.jobs.items() if one.has_estimate] == [2]
    assert learned(even=(100.0,) * 4).pooled() == Estimate()


def test_a_timeout_bounds_the_upper_time_of_a_job_without_an_estimate() -> None:
    limited = WaitingJob(QueuedJob(1, 200, 1, run_time=key("other", 3000.0)), WHOLE)
    found = forecast(box(1), [limited, waits(2, "even")])
    assert times(found) == {1: (0, 600), 2: (600, 700)}
    assert upper(found) == {1: (0, 3000), 2: (3000, 3100)}
    assert not found.jobs[1].has_estimate


def test_a_job_waits_for_the_ends_of_its_parents() -> None:
    found = forecast(
        box(2, runs(1, "even", "U0", 40)),
        [waits(2, "wide"), waits(3, "even", WHOLE, 1, 2), waits(4, "even", WHOLE, 3)],
    )
    assert times(found) == {1: (-40, 60), 2: (0, 200), 3: (200, 300), 4: (300, 400)}
    assert upper(found)[4] == (400, 500)


def test_a_job_whose_parent_does_not_run_has_no_forecast() -> None:
    found = forecast(box(1), [waits(2, "even", WHOLE, 9), waits(3, "even", WHOLE, 2)])
    assert (times(found), found.reasons) == ({}, {})


def test_a_delayed_job_starts_after_its_delay() -> None:
    delayed = replace(waits(1, "even"), not_before=NOW + 30)
    assert times(forecast(box(1), [delayed, waits(2, "even")])) == {1: (100, 200), 2: (0, 100)}


def test_a_job_that_never_fits_has_a_reason_instead_of_a_forecast() -> None:
    facts = box(1)
    facts = replace(facts, gpus=(*facts.gpus, replace(gpu(1), paused=True)))
    found = forecast(facts, [waits(1, "even"), waits(2, "even", TWO)])
    assert times(found) == {1: (0, 100)}
    [(resources, reason)] = found.reasons.items()
    assert (resources, reason.kind, reason.gpus) == (TWO.key(), WaitKind.NO_FREE_GPU, 1)


def test_an_attempt_whose_command_has_ended_leaves_now() -> None:
    facts = box(1, runs(1, "even", "U0", 40))
    found = forecast(facts, [waits(2, "even")], ending=[facts.attempts[0].id])
    assert times(found) == {1: (-40, 0), 2: (0, 100)}


def test_the_earlier_attempt_of_a_job_that_waits_again_is_not_taken_for_its_next_run() -> None:
    released = replace(running(1, "U0", share=1000), state=AttemptState.RELEASED)
    facts = box(1, replace(released, job_id=2, released_boot=None))
    found = forecast(facts, [waits(2, "even"), waits(3, "even", WHOLE, 2)])
    assert times(found) == {2: (60, 160), 3: (160, 260)}


def test_an_empty_queue_has_an_empty_forecast() -> None:
    assert forecast(box(2), []) == Forecast()
