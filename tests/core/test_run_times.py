"""Estimates of run times, from the run times of completed attempts."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.history import (
    ClassRunTimes,
    Estimate,
    RunTimeKey,
    RunTimes,
    RunTimeSummary,
    summarise,
)

#: The fewest ratios from which anything is concluded.
FIVE = (0.5, 0.8, 1.0, 1.5, 2.0)
SECONDS = st.floats(0.01, 1e6)
RUNS = st.lists(st.tuples(st.sampled_from("abcd"), SECONDS), max_size=40)
RATIOS = st.lists(st.floats(1e-3, 1e3), max_size=30).map(lambda found: tuple(sorted(found)))
ESTIMATES = st.builds(Estimate, st.none() | SECONDS, RATIOS, st.none() | SECONDS)


def key(command: str = "python t.py", timeout_s: float | None = None) -> RunTimeKey:
    spec = JobSpec("command", command, "/", command=command, timeout_s=timeout_s)
    return RunTimeKey(spec.identity, spec.to_json())


def runs(*seconds: float, identity: str = "a") -> tuple[tuple[str, float], ...]:
    return tuple((identity, one) for one in seconds)


@pytest.mark.parametrize(
    ("estimate", "upper_s"),
    [
        (Estimate(), math.inf),
        (Estimate(timeout_s=50.0), 50.0),
        (Estimate(100.0), 200.0),
        (Estimate(100.0, FIVE[:4]), 200.0),
        (Estimate(100.0, FIVE), 200.0),
        (Estimate(100.0, tuple(map(float, range(1, 11)))), 900.0),
        (Estimate(100.0, FIVE, timeout_s=150.0), 150.0),
        (Estimate(100.0, FIVE, timeout_s=250.0), 200.0),
    ],
)
def test_nine_of_ten_runs_end_within_the_upper_estimate(estimate: Estimate, upper_s: float) -> None:
    assert estimate.upper_s == upper_s


@pytest.mark.parametrize(
    ("estimate", "age_s", "remaining_s"),
    [
        (Estimate(), 0.0, 600.0),
        (Estimate(), 599.0, 600.0),
        (Estimate(), 7000.0, 7000.0),
        (Estimate(timeout_s=7100.0), 7000.0, 100.0),
        (Estimate(100.0), 0.0, 100.0),
        (Estimate(100.0), 30.0, 70.0),
        (Estimate(100.0), 100.0, 60.0),
        (Estimate(100.0), 400.0, 200.0),
        (Estimate(100.0, FIVE), 0.0, 100.0),
        (Estimate(100.0, FIVE), 60.0, 40.0),  # only four ratios are above 0.6
        (Estimate(100.0, (*FIVE, 3.0, 4.0, 5.0)), 0.0, 175.0),
        (Estimate(100.0, (*FIVE, 3.0, 4.0, 5.0)), 100.0, 200.0),  # the middle of 1.5, 2, 3, 4, 5
        (Estimate(100.0, (*FIVE, 3.0, 4.0, 5.0)), 149.0, 151.0),
        (Estimate(100.0, (*FIVE, 3.0, 4.0, 5.0)), 150.0, 75.0),
        (Estimate(100.0, FIVE, timeout_s=120.0), 90.0, 10.0),
        (Estimate(100.0, FIVE, timeout_s=120.0), 130.0, 0.0),
    ],
)
def test_the_remaining_time_follows_from_the_runs_that_took_longer(
    estimate: Estimate, age_s: float, remaining_s: float
) -> None:
    assert estimate.remaining_s(age_s) == pytest.approx(remaining_s)


@given(ESTIMATES, st.floats(0, 1e7))
def test_every_estimate_is_capped_by_the_timeout_and_is_not_negative(
    estimate: Estimate, age_s: float
) -> None:
    left = estimate.remaining_s(age_s)
    assert 0 <= left < math.inf
    if estimate.timeout_s is None:
        assert left > 0
    else:
        assert estimate.upper_s <= estimate.timeout_s
        assert left <= max(0.0, estimate.timeout_s - age_s)


@given(ESTIMATES)
def test_the_upper_estimate_is_not_below_the_median(estimate: Estimate) -> None:
    if estimate.predicted_s is not None:
        assert estimate.remaining_s(0.0) <= estimate.upper_s * (1 + 1e-9)


@given(SECONDS, RATIOS, st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_timeout_never_makes_an_estimate_later(
    predicted_s: float, ratios: tuple[float, ...], age_s: float, timeout_s: float
) -> None:
    free, capped = Estimate(predicted_s, ratios), Estimate(predicted_s, ratios, timeout_s)
    assert capped.upper_s <= free.upper_s
    assert capped.remaining_s(age_s) <= free.remaining_s(age_s)


@given(st.floats(0, 1e6), st.floats(0, 1e6), RATIOS)
def test_a_job_that_has_exceeded_every_run_ends_the_later_the_older_it_is(
    first: float, second: float, ratios: tuple[float, ...]
) -> None:
    younger, older = sorted((first, second))
    for estimate in (Estimate(), Estimate(1.0, tuple(one / 1e9 for one in ratios))):
        assert younger + estimate.remaining_s(younger) <= (older + estimate.remaining_s(older)) * (1 + 1e-9)


@given(RUNS, st.floats(1.0, 100.0), st.sampled_from("abcde"))
def test_longer_runs_mean_longer_estimates(
    listed: list[tuple[str, float]], factor: float, identity: str
) -> None:
    known = ClassRunTimes(tuple(listed))
    longer = ClassRunTimes(tuple((one, seconds * factor) for one, seconds in listed))
    before, after = known.prediction(identity), longer.prediction(identity)
    assert longer.ratios == pytest.approx(known.ratios)
    if before is None:
        assert after is None
    else:
        assert after is not None
        assert after.seconds == pytest.approx(before.seconds * factor)


@given(RUNS)
def test_each_run_is_compared_with_the_prediction_from_the_runs_before_it(
    listed: list[tuple[str, float]],
) -> None:
    expected = []
    for number, (identity, seconds) in enumerate(listed):
        found = ClassRunTimes(tuple(listed[:number])).prediction(identity)
        if found is not None:
            expected.append(seconds / found.seconds)
    assert ClassRunTimes(tuple(listed)).ratios == pytest.approx(tuple(sorted(expected)))


@given(RUNS, st.sampled_from("abcde"))
def test_a_prediction_is_the_median_of_the_identity_or_else_of_the_class(
    listed: list[tuple[str, float]], identity: str
) -> None:
    same = [seconds for one, seconds in listed if one == identity]
    every = [seconds for _, seconds in listed]
    found = ClassRunTimes(tuple(listed)).prediction(identity)
    if not same and len(every) < 5:
        assert found is None
    else:
        assert found is not None
        assert found.seconds == pytest.approx(median(same or every))
        assert (found.runs, found.is_of_identity) == (len(same or every), bool(same))


def test_jobs_of_a_class_share_their_ratios_and_have_predictions_of_their_own() -> None:
    short, long, other = key("python t.py --lr 1"), key("python t.py --lr 2"), key("python u.py")
    listed = runs(10.0, 10.0, 20.0, identity=short.identity) + runs(100.0, 110.0, identity=long.identity)
    times = RunTimes({short.workload_class: ClassRunTimes(listed)})
    ratios = (1.0, 1.1, 2.0)
    assert times.estimate(short) == Estimate(10.0, ratios)
    assert times.estimate(long) == Estimate(105.0, ratios)
    assert times.estimate(key("python t.py --lr 3", timeout_s=15.0)) == Estimate(20.0, ratios, 15.0)
    assert times.estimate(other) == times.estimate(None) == RunTimes().estimate(short) == Estimate()
    assert times.estimate(key("python u.py", timeout_s=9.0)) == Estimate(timeout_s=9.0)


def test_a_class_is_analysed_only_when_one_of_its_jobs_needs_an_estimate() -> None:
    listed = tuple((f"{number % 7}", float(number)) for number in range(1, 201))
    classes = {one: ClassRunTimes(listed) for one in (key().workload_class, "other")}
    assert RunTimes(classes).estimate(key()).predicted_s is not None
    assert [bool(vars(one)) for one in classes.values()] == [
        True,
        False,
    ]


def test_a_summary_compares_runs_with_the_estimates_before_them() -> None:
    known = ClassRunTimes(runs(100.0, 100.0, 150.0, 80.0, 100.0, 130.0, 900.0))
    few = ClassRunTimes(runs(10.0, 30.0))
    assert summarise(RunTimes({'["u.py", "qwen"]': known, '["t.py", null]': few})) == [
        RunTimeSummary("t.py", None, 2, 1, 20.0, None, None),
        RunTimeSummary("u.py", "qwen", 7, 1, 100.0, 9.0, 0.25),
    ]
