from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.views.gpus import shown


def gpu(**values: Any) -> dict[str, Any]:
    return {
        "uuid": "A", "idx": 0, "name": "H200", "total_mib": 1000, "used_mib": 10, "load_percent": 0.0,
        "fault": None, "sampled_at": 5.0, **values,
    }  # fmt: skip


def held(share: int, job_id: int = 3, released: float | None = None) -> dict[str, Any]:
    return {"gpus": '["A"]', "share": share, "job_id": job_id, "released_boot": released}


@pytest.mark.parametrize(
    ("row", "holders", "paused", "state", "share"),
    [
        ({}, [], False, "available", 0),
        ({}, [held(500)], False, "available", 500),
        ({}, [held(500), held(500, 4)], False, "busy", 1000),
        ({}, [held(1000, released=7.0)], False, "available", 0),
        ({}, [held(1000)], True, "paused", 1000),
        ({"fault": "lost"}, [], True, "lost", 0),
        ({"used_mib": 800}, [], False, "busy", 0),
        ({"used_mib": 800}, [held(500)], False, "available", 500),
        ({"load_percent": 90.0}, [], False, "busy", 0),
        ({"used_mib": None, "load_percent": None, "total_mib": None}, [], False, "available", 0),
    ],
)
def test_states(
    row: dict[str, Any], holders: list[dict[str, Any]], paused: bool, state: str, share: int
) -> None:
    (seen,) = shown([gpu(**row)], holders, {"A": paused})
    assert (seen.state, seen.share) == (state, share)
    assert seen.jobs == tuple(sorted(h["job_id"] for h in holders if h["released_boot"] is None))
