"""Texts of GPU claims."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.show.gpu_text import claim_object, claim_text, claims_text


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (GpuClaim(None, 4711, "ann"), "claimed by run, pid 4711, user ann"),
        (GpuClaim(8000, 4711, "ann"), "8000 MiB claimed by run, pid 4711, user ann"),
        (GpuClaim(None, 99, "bob", by_scheduler=True), "claimed by a scheduler's job, pid 99, user bob"),
        (
            GpuClaim(None, 99, "bob", by_scheduler=True, job=7, folder="/home/bob/exp"),
            "claimed by job 7 of /home/bob/exp, pid 99, user bob",
        ),
        (GpuClaim(None, 99), "claimed by run, pid 99"),
        (GpuClaim(512, 0), "512 MiB claimed by a process in another container"),
        (GpuClaim(None, 5, "a\x1b[2Jb"), r"claimed by run, pid 5, user a\x1b[2Jb"),
    ],
)
def test_a_claim_shows_its_amount_and_its_holder(claim: GpuClaim, text: str) -> None:
    assert claim_text(claim) == text


def test_only_the_first_claims_of_a_gpu_are_listed() -> None:
    claims = [GpuClaim(100 * pid, pid, "ann") for pid in (1, 2, 3, 4, 5)]
    assert claims_text(claims[:1]) == "100 MiB claimed by run, pid 1, user ann"
    assert claims_text(claims) == (
        "100 MiB claimed by run, pid 1, user ann; 200 MiB claimed by run, pid 2, user ann;"
        " 300 MiB claimed by run, pid 3, user ann; and 2 more"
    )


def test_an_unknown_process_or_user_is_null_in_json() -> None:
    known, unknown = GpuClaim(512, 7, "ann", by_scheduler=True, job=3, folder="/work"), GpuClaim(None, 0)
    values = {"pid": 7, "user": "ann", "mib": 512, "by_scheduler": True, "job": 3, "folder": "/work"}
    assert claim_object(known) == values
    assert claim_object(unknown) == {**dict.fromkeys(values), "by_scheduler": False}
