"""Texts for the progress of jobs."""

from __future__ import annotations

import time

import pytest

from gpu_scheduler.core.explain.progress import JobProgress
from gpu_scheduler.core.model.job import Checkpoint, Progress, ProgressUnit
from gpu_scheduler.core.text.formatting import format_eta
from gpu_scheduler.show.job_text import finish_text, long_text, progress_object, short_text

NOON = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))
HOUR, DAY = 3600.0, 86400.0


def shown(progress: Progress, left: float | None = None) -> JobProgress:
    return JobProgress(progress, None, left, None if left is None else NOON + left)


@pytest.mark.parametrize(
    ("progress", "left", "short", "long"),
    [
        (Progress(159, 300, ProgressUnit.STEP), 5040.0, "53% ETA 1h24m",
         "53% (step 159 of 300), ETA 1h24m, at 13:24"),
        (Progress(53.5, 100, ProgressUnit.PERCENT), 30.0, "53% ETA 30s", "53%, ETA 30s, at 12:00"),
        (Progress(1.456, 3, ProgressUnit.EPOCH), None, "48%", "48% (epoch 1.46 of 3)"),
        (Progress(2999, 3000, ProgressUnit.STEP), None, "99%", "99% (step 2999 of 3000)"),
        (Progress(3000, 3000, ProgressUnit.STEP), None, "100%", "100% (step 3000 of 3000)"),
        (Progress(150, None, ProgressUnit.CHECKPOINT), None, "step 150", "step 150"),
    ],
)  # fmt: skip
def test_shows_only_what_is_known(progress: Progress, left: float | None, short: str, long: str) -> None:
    assert short_text(shown(progress, left)) == short
    assert long_text(shown(progress, left), NOON) == long


def test_shows_nothing_without_progress() -> None:
    only_saved = JobProgress(None, Checkpoint("/out/checkpoint-5", 5, NOON))
    for nothing in (None, JobProgress(), only_saved):
        assert (short_text(nothing), long_text(nothing, NOON)) == ("", "")
    assert progress_object(None) is None
    assert progress_object(JobProgress()) is None
    found = progress_object(only_saved)
    assert found is not None
    assert found["checkpoint"] == {"path": "/out/checkpoint-5", "step": 5, "saved_at": NOON}


@pytest.mark.parametrize(
    ("after_s", "text"),
    [
        (0, "12:00"), (11 * HOUR, "23:00"), (13 * HOUR, "Tue 01:00"), (6 * DAY - 1, "Sun 11:59"),
        (6 * DAY, "2026-11-29 12:00"), (400 * DAY, "2027-12-28 12:00"),
    ],
)  # fmt: skip
def test_the_finish_names_the_day_if_it_is_not_today(after_s: float, text: str) -> None:
    assert finish_text(NOON + after_s, NOON) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1s"), (45, "45s"), (59.6, "1m"), (200, "3m20s"), (240, "4m"), (5040, "1h24m"), (3600, "1h"),
        (187_200, "2d4h"), (172_810, "2d"),
    ],
)  # fmt: skip
def test_the_time_left_has_one_or_two_units(seconds: float, text: str) -> None:
    assert format_eta(seconds) == text
