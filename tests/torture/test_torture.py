"""The torture at the size of the suite: 15 kills and 60 jobs each; the naive variant is seen to fail."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.torture.harness import Plan, Variant, torture

#: Replay a run with TORTURE_SEED=…
SEED = int(os.environ.get("TORTURE_SEED") or random.SystemRandom().randrange(10**6))


@pytest.mark.timeout(170)
@pytest.mark.parametrize("variant", ["direct", "screen"])
def test_random_kills_lose_nothing_and_run_nothing_twice(variant: Variant, tmp_path: Path) -> None:
    verdict = torture(Plan(variant, jobs=60, kills=15, seed=SEED), tmp_path)
    assert verdict.clean, f"seed {SEED}: {verdict} {verdict.wrong}"


@pytest.mark.timeout(170)
def test_killed_runners_are_interrupted_and_never_a_success(tmp_path: Path) -> None:
    verdict = torture(Plan("direct", jobs=40, kills=10, seed=SEED, runner_kills=10), tmp_path)
    assert verdict.clean, f"seed {SEED}: {verdict} {verdict.wrong}"


def test_the_same_torture_fails_on_the_naive_variant(tmp_path: Path) -> None:
    verdict = torture(Plan("naive", jobs=60, kills=15, seed=7), tmp_path)
    assert not verdict.clean
