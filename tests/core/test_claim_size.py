"""The memory that an attempt claims on a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.job import Allocation
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.scheduling.placement import Ledger, capped_claim, claim_size, unclaimed_mib
from gpu_scheduler.core.scheduling.settings import Limits

TOTAL = 24_000


@pytest.mark.parametrize(
    ("allocation", "mib"),
    [
        (Allocation(500), 12_000),
        (Allocation(333), 7992),
        (Allocation(999), 23_976),
        (Allocation(vram=6000), 6000),
        (Allocation(200, vram=6000), 6000),
        (Allocation(1000, vram=6000), 6000),
        # The observed use does not change a claim.
        (Allocation(500, peak_mib=20_000), 12_000),
        (Allocation(vram=6000, peak_mib=20_000), 6000),
        # More than the GPU has.
        (Allocation(vram=30_000), TOTAL),
        # The whole GPU.
        (Allocation(), None),
        (Allocation(1000), None),
        (Allocation(whole=True), None),
        (Allocation(500, whole=True), None),
        (Allocation(vram=6000, whole=True), None),
    ],
)
def test_a_claim_has_the_declared_size(allocation: Allocation, mib: int | None) -> None:
    assert claim_size(allocation, TOTAL) == mib


@pytest.mark.parametrize(
    ("allocation", "mib"),
    [(Allocation(500), 500), (Allocation(1), 1), (Allocation(vram=6000), None), (Allocation(1000), None)],
)
def test_on_a_gpu_of_unknown_size_a_claim_has_one_mib_for_each_thousandth(
    allocation: Allocation, mib: int | None
) -> None:
    assert claim_size(allocation, None) == mib


def test_a_share_of_a_tiny_gpu_claims_at_least_one_mib() -> None:
    assert claim_size(Allocation(1), 100) == 1


@pytest.mark.parametrize(
    ("others", "mib"),
    [
        ([], 12_000),
        ([Allocation(500)], 12_000),
        ([Allocation(100, vram=20_000)], 4000),
        ([Allocation(100, vram=20_000), Allocation(400)], 0),
        ([Allocation(whole=True)], 0),
    ],
)
def test_a_claim_takes_at_most_what_the_other_attempts_leave(others: list[Allocation], mib: int) -> None:
    assert capped_claim(Allocation(500), others, TOTAL) == mib


def test_unclaimed_memory_is_never_negative() -> None:
    assert unclaimed_mib([4000, 12_000], TOTAL) == 8000
    assert unclaimed_mib([20_000, 12_000], TOTAL) == 0
    assert unclaimed_mib([None, 12_000], TOTAL) == 0
    assert unclaimed_mib([600], None) == 400


MIB = st.integers(1, 30_000)
SHARES = st.sampled_from([1, 100, 333, 334, 500, 999, 1000])
NEEDS = st.builds(
    Need, st.just(1), SHARES, alone=st.booleans(), vram=st.none() | MIB, exclusive=st.booleans()
) | st.builds(Need, st.just(1), vram=MIB, exclusive=st.booleans())


@given(st.lists(NEEDS, max_size=8), st.sampled_from([None, 100, 999, 1000, TOTAL, 81_559]))
def test_the_claims_of_attempts_that_admission_accepts_never_exceed_the_gpu(
    needs: list[Need], total: int | None
) -> None:
    gpu = Ledger("U0", 0, Limits(margin_mib=0), total)
    accepted: list[Allocation] = []
    claims: list[int | None] = []
    for need in needs:
        if not gpu.accepts(need):
            continue
        gpu = gpu.plus(need)
        allocation = Allocation(need.share, need.vram, need.whole)
        claim = capped_claim(allocation, accepted, total)
        # A whole claim succeeds only if no other attempt claims anything on the GPU.
        assert claim is not None or not any(claims)
        assert None not in claims
        accepted.append(allocation)
        claims.append(claim)
    assert sum(claim or 0 for claim in claims) <= (total or 1000)
