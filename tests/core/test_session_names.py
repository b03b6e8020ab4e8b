"""Names of Screen sessions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.command.build import MAX_SESSION_NAME, session_name


@pytest.mark.parametrize(
    ("gpus", "mode", "job_id", "name"),
    [
        ((0,), "train", 7, "gpujob_0_train_7"),
        ((0, 1), "train", 7, "gpujob_0,1_train_7"),
        ((3,), "a b/c:é\n", 7, "gpujob_3_a-b-c---_7"),
        ((0,), "", 7, "gpujob_0_job_7"),
        ((0,), "x" * 60, 123, "gpujob_0_" + "x" * 27 + "_123"),
        (tuple(range(8)), "train", 12, "gpujob_0,1,2,3,4,5,6,7_train_12"),
        (tuple(range(16)), "train", 12, "gpujob_0-15_train_12"),
        (tuple(range(0, 64, 2)), "train", 12, "gpujob_0.x32_train_12"),
    ],
)
def test_a_session_name_contains_the_gpus_and_mode_and_job_id(
    gpus: tuple[int, ...], mode: str, job_id: int, name: str
) -> None:
    assert session_name(gpus, mode, job_id) == name


@settings(deadline=None, max_examples=100)
@given(st.sets(st.integers(0, 255), min_size=1), st.text(), st.integers(1, 10**9))
def test_every_session_name_is_valid_for_screen(gpus: set[int], mode: str, job_id: int) -> None:
    name = session_name(sorted(gpus), mode, job_id)
    assert re.fullmatch(r"gpujob_[0-9,.x-]+_[A-Za-z0-9_.,-]+_\d+", name)
    assert len(name) <= MAX_SESSION_NAME
    assert name.endswith(f"_{job_id}")
