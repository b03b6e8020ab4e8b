"""The estimate of the time until a job finishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.explain.progress import (
    CheckpointKind,
    matched_name,
    parse_name,
    remaining_s,
    step_in,
    work_before,
)
from gpu_scheduler.core.model.job import Progress, ProgressUnit

STEP = ProgressUnit.STEP


@given(
    total=st.integers(2, 10**5),
    part=st.floats(0.01, 0.99),
    resumed=st.floats(0, 0.99),
    speed=st.floats(1e-3, 1e3),
    started=st.floats(1e9, 2e9),
)
def test_a_job_with_a_constant_speed_finishes_when_it_says(
    total: int, part: float, resumed: float, speed: float, started: float
) -> None:
    base = total * resumed * part
    current = total * part
    now = started + (current - base) / speed
    left = remaining_s(
        Progress(current, total, STEP), Progress(base, total, STEP), started_at=started, now=now
    )
    if left is None:
        assert now == started or current == base
    else:
        rounding = 1e-6 / max(1e-9, now - started)  # the clock has microseconds
        assert left == pytest.approx((total - current) / speed, rel=0.01 + rounding)


@given(
    st.floats(0, 1e9), st.none() | st.floats(0, 1e9), st.floats(0, 1e9), st.none() | st.floats(0, 2e9),
    st.floats(0, 2e9), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 2e9),
    st.none() | st.floats(0, 1e9),
)  # fmt: skip
def test_an_estimate_is_a_positive_time(
    current: float,
    total: float | None,
    first: float,
    first_at: float | None,
    now: float,
    started: float | None,
    at: float | None,
    elapsed: float | None,
) -> None:
    left = remaining_s(
        Progress(current, total, STEP, at, elapsed),
        Progress(first, total, STEP, first_at),
        started_at=started,
        now=now,
    )
    assert left is None or 0 < left < 4e8


@pytest.mark.parametrize(
    ("progress", "started", "resumed"),
    [
        (Progress(50, None, STEP), 0.0, 0.0),
        (Progress(0, 100, STEP), 0.0, 0.0),
        (Progress(100, 100, STEP), 0.0, 0.0),
        (Progress(50, 100, STEP), None, 0.0),
        (Progress(50, 100, STEP), 10.0, 0.0),
        (Progress(50, 100, STEP), 0.0, 50.0),
        (Progress(50, 100, STEP, elapsed_s=0.0), 0.0, 0.0),
        (Progress(1, 1e15, STEP), 0.0, 0.0),  # no calendar has a date for its end
    ],
)
def test_there_is_no_estimate_without_evidence(
    progress: Progress, started: float | None, resumed: float
) -> None:
    first = Progress(resumed, progress.total, STEP)
    assert remaining_s(progress, first, started_at=started, now=10.0) is None


def test_the_time_that_the_job_reports_excludes_its_preparation() -> None:
    progress = Progress(50, 100, STEP, elapsed_s=40.0)
    assert remaining_s(progress, started_at=0.0, now=100.0) == 40.0


@pytest.mark.parametrize(
    ("readings", "total", "before"),
    [
        ([], 600, 0),
        ([1], 600, 0), ([30], 600, 0), ([31], 600, None), ([301], 600, None),
        ([1], 3, 0), ([5], 10, None),
        ([301, 302], 600, 300), ([310, 320, 330], 600, 300), ([5, 6], 10, 4), ([5.1, 5.2], 10, 5),
        ([100, 200], 300, 0), ([1, 2, 3], 300, 0), ([37, 38, 75, 112], 600, 0), ([37, 62], 600, 0),
    ],
)  # fmt: skip
def test_the_first_readings_show_what_was_done_before(
    readings: list[float], total: float, before: float | None
) -> None:
    assert work_before(readings, total) == (None if before is None else pytest.approx(before))


@given(resumed=st.integers(100, 10**6), step=st.integers(1, 50), count=st.integers(2, 5))
def test_a_counter_that_goes_on_counts_from_where_it_resumed(resumed: int, step: int, count: int) -> None:
    readings = [float(resumed + step * n) for n in range(1, count + 1)]
    assert work_before(readings, 2e6) == resumed


@pytest.mark.parametrize(
    ("first", "left"),
    [
        (None, 100.0),
        (Progress(300, 600, STEP), None),  # what was done at the start
        (Progress(200, 600, STEP), 300.0),
        (Progress(200, 600, STEP, at=50.0), 150.0),
        (Progress(6, 600, STEP, at=50.0), 100.0),
        (Progress(300, 600, STEP, at=50.0), None),
    ],
)
def test_only_the_work_since_the_first_reading_counts(first: Progress | None, left: float | None) -> None:
    found = remaining_s(Progress(300, 600, STEP), first, started_at=0.0, now=100.0)
    assert found == (None if left is None else pytest.approx(left))


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [
        ("checkpoint-150", CheckpointKind.TRAINER, 150),
        ("epoch=3-step=150.ckpt", CheckpointKind.LIGHTNING, 150),
        ("bert-epoch=03-step=150-val_loss=0.50.ckpt", CheckpointKind.LIGHTNING, 150),
        ("completions_00150.parquet", CheckpointKind.COMPLETIONS, 150),
    ],
)
def test_recognises_checkpoints(name: str, kind: CheckpointKind, step: float) -> None:
    found = parse_name(name)
    assert found is not None
    assert (found.kind, found.step) == (kind, step)


@pytest.mark.parametrize(
    "name", ["checkpoint-", "checkpoint-last", "tmp-checkpoint-150", "last.ckpt", "step=5.ckpt"]
)
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("out/model_epoch_5.pt", 5), ("out/step_100_of_300.pt", 300), ("v2/last.ckpt", None),
        ("out/checkpoint-150/", 150), ("True", None), ("model-5.mp3", 5),
    ],
)  # fmt: skip
def test_the_last_number_in_a_name_is_the_step(path: str, step: float | None) -> None:
    assert step_in(path) == step
    assert matched_name("completions_5.parquet").kind is CheckpointKind.PATTERN
