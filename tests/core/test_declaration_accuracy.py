"""Judging how accurate memory declarations were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpu_scheduler.core.scheduling.placement import DeclarationAccuracy, judge_declaration


@pytest.mark.parametrize(
    ("peaks", "declared", "completed", "verdict"),
    [
        ([17910], 18432, True, ("within", -3)),
        ([5038], 12288, True, ("over", -59)),
        ([12034], 8192, True, ("under", 47)),
        ([1100], 1000, True, ("within", 10)),
        ([1101], 1000, True, ("under", 10)),
        ([900], 1000, True, ("within", -10)),
        ([899], 1000, True, ("over", -10)),
        # The largest peak counts, because the declaration is the same for each GPU.
        ([100, 980], 1000, True, ("within", -2)),
        # A failed attempt may have ended before its peak.
        ([100], 1000, False, None),
        ([1300], 1000, False, ("under", 30)),
        ([1000], 1000, False, None),
        # On a GPU whose peak is unknown, the job may have used more.
        ([100, None], 1000, True, None),
        ([1000, None], 1000, True, None),
        ([1300, None], 1000, True, ("under", 30)),
        ([None], 1000, True, None),
        ([], 1000, True, None),
        ([500], None, True, None),
    ],
)
def test_judges_a_memory_declaration_by_the_peaks_of_its_job(
    peaks: list[int | None], declared: int | None, completed: bool, verdict: tuple[str, int] | None
) -> None:
    found = judge_declaration(peaks, [declared] * len(peaks), 0.10, completed=completed)
    assert (found and (found.kind, found.percent, found.mib)) == (verdict and (*verdict, declared))


@pytest.mark.parametrize(
    ("peaks", "budgets", "verdict"),
    [
        ([16_000], [6144], DeclarationAccuracy("under", 160, 6144)),
        ([6758], [6144], None),
        ([6759], [6144], DeclarationAccuracy("under", 10, 6144)),
        # A share may describe only compute use. Using no more than its share of the memory is therefore not
        # judged.
        ([100], [6144], None),
        ([6144], [6144], None),
        # If the job has the same share of GPUs of different sizes, the largest ratio of use to share counts.
        ([9000, 9000], [6144, 20_480], DeclarationAccuracy("under", 46, 6144)),
        ([6000, 30_000], [6144, 20_480], DeclarationAccuracy("under", 46, 20_480)),
        # The size of a GPU may be unknown.
        ([9000], [None], None),
        ([9000, 9000], [None, 6144], DeclarationAccuracy("under", 46, 6144)),
    ],
)
@pytest.mark.parametrize("completed", [True, False])
def test_judges_a_declared_share_only_for_overuse(
    peaks: list[int | None], budgets: list[int | None], completed: bool, verdict: DeclarationAccuracy | None
) -> None:
    assert judge_declaration(peaks, budgets, 0.10, completed=completed, by_share=True) == verdict


@given(
    some.lists(some.integers(0, 100_000), min_size=1),
    some.integers(1, 100_000),
    some.floats(0, 1),
)
def test_the_sign_of_the_percentage_agrees_with_the_verdict(
    peaks: list[int], declared: int, tolerance: float
) -> None:
    verdict = judge_declaration(peaks, [declared] * len(peaks), tolerance, completed=True)
    assert verdict is not None
    above = max(peaks) > declared * (1 + tolerance)
    below = max(peaks) < declared * (1 - tolerance)
    assert verdict.kind == ("under" if above else "over" if below else "within")
    assert verdict.percent >= 0 if above else not below or verdict.percent <= 0
