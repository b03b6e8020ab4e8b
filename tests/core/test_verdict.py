"""How good a declaration was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpu_scheduler.core.verdict import Verdict, judge


@pytest.mark.parametrize(
    ("peaks", "declared", "completed", "verdict"),
    [
        ([17910], 18432, True, Verdict("within", -3)),
        ([5038], 12288, True, Verdict("over", -59)),
        ([12034], 8192, True, Verdict("under", 47)),
        ([1100], 1000, True, Verdict("within", 10)),
        ([1101], 1000, True, Verdict("under", 10)),
        ([900], 1000, True, Verdict("within", -10)),
        ([899], 1000, True, Verdict("over", -10)),
        # The largest of them counts: each GPU was declared the same.
        ([100, 980], 1000, True, Verdict("within", -2)),
        # One that failed may have done so before its peak.
        ([100], 1000, False, None),
        ([1300], 1000, False, Verdict("under", 30)),
        ([1000], 1000, False, None),
        # A GPU of which nothing is known may have had more.
        ([100, None], 1000, True, None),
        ([1000, None], 1000, True, None),
        ([1300, None], 1000, True, Verdict("under", 30)),
        ([None], 1000, True, None),
        ([], 1000, True, None),
        ([500], None, True, None),
    ],
)
def test_verdicts(
    peaks: list[int | None], declared: int | None, completed: bool, verdict: Verdict | None
) -> None:
    assert judge(peaks, declared, 0.10, completed=completed) == verdict


@given(
    some.lists(some.integers(0, 100_000), min_size=1),
    some.integers(1, 100_000),
    some.floats(0, 1),
)
def test_exactly_one_verdict_and_its_sign(peaks: list[int], declared: int, tolerance: float) -> None:
    verdict = judge(peaks, declared, tolerance, completed=True)
    assert verdict is not None
    above = max(peaks) > declared * (1 + tolerance)
    below = max(peaks) < declared * (1 - tolerance)
    assert verdict.kind == ("under" if above else "over" if below else "within")
    assert verdict.percent >= 0 if above else not below or verdict.percent <= 0
