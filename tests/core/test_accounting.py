"""Accounting of shares and memory. Covers every row of the table in docs/design.md, Accounting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.job import Allocation
from gpu_scheduler.core.scheduling.placement import allocated_mib, allocated_share, with_spike_buffer

TOTAL, SPIKE = 24_000, 0.10


@pytest.mark.parametrize(
    ("booking", "share", "memory"),
    [
        # A declared share stays fixed, but the memory that it stands for grows with the observed peak.
        (Allocation(500), 500, 12_000),
        (Allocation(500, peak_mib=10_000), 500, 12_000),
        (Allocation(500, peak_mib=10_909), 500, 12_000),
        (Allocation(500, peak_mib=11_000), 500, 12_100),
        (Allocation(500, peak_mib=20_000), 500, 22_000),
        (Allocation(333), 333, 7992),
        # Declared memory counts as declared until the job exceeds it. From then on, the buffered peak counts.
        (Allocation(vram=6000), 250, 6000),
        (Allocation(vram=6000, peak_mib=5999), 250, 6000),
        (Allocation(vram=6000, peak_mib=6000), 250, 6000),
        (Allocation(vram=6000, peak_mib=6001), 276, 6602),
        (Allocation(vram=6001), 251, 6001),
        (Allocation(vram=1), 1, 1),
        (Allocation(vram=24_000), 1000, 24_000),
        (Allocation(vram=20_000, peak_mib=23_000), 1000, 25_300),
        # If a job declares both, the share counts as declared, and the memory as if declared alone.
        (Allocation(200, vram=6000), 200, 6000),
        (Allocation(200, vram=6000, peak_mib=9000), 200, 9900),
        (Allocation(900, vram=1000), 900, 1000),
        # A job that is alone, exclusive or without a declaration takes up the whole GPU.
        (Allocation(1000, whole=True), 1000, 24_000),
        (Allocation(vram=6000, whole=True), 1000, 24_000),
        (Allocation(500, vram=6000, whole=True, peak_mib=100), 1000, 24_000),
        (Allocation(whole=True), 1000, 24_000),
        (Allocation(), 1000, 24_000),
        (Allocation(peak_mib=5), 1000, 24_000),
    ],
)
def test_computes_the_share_and_memory_of_an_allocation(booking: Allocation, share: int, memory: int) -> None:
    assert (allocated_share(booking, TOTAL, SPIKE), allocated_mib(booking, TOTAL, SPIKE)) == (share, memory)


@pytest.mark.parametrize("total", [None, 0])
@pytest.mark.parametrize(
    ("booking", "share"),
    [
        (Allocation(500), 500),
        (Allocation(vram=6000), 1000),
        (Allocation(500, vram=6000), 500),
        (Allocation(500, whole=True), 1000),
        (Allocation(), 1000),
    ],
)
def test_declared_memory_takes_up_a_whole_gpu_of_unknown_size(
    booking: Allocation, share: int, total: int | None
) -> None:
    assert allocated_share(booking, total, SPIKE) == share


@pytest.mark.parametrize(
    ("peak", "spike", "held"),
    [(10_000, 0.1, 11_000), (10_001, 0.1, 11_002), (60, 0.1, 66), (0, 0.1, 0), (9, 0.0, 9), (7, 0.5, 11)],
)
def test_a_peak_plus_spike_buffer_is_computed_exactly_and_rounded_up(
    peak: int, spike: float, held: int
) -> None:
    assert with_spike_buffer(peak, spike) == held


BOOKINGS = st.builds(
    Allocation,
    st.sampled_from([0, 1, 333, 500, 1000]),
    st.none() | st.integers(1, 30_000),
    st.booleans(),
    st.none() | st.integers(0, 30_000),
)


@settings(deadline=None)
@given(BOOKINGS, st.integers(1, 100_000), st.sampled_from([0.0, 0.1, 0.5]))
def test_an_allocation_counts_at_least_its_declaration_and_grows_with_its_peak(
    booking: Allocation, total: int, spike: float
) -> None:
    seen_more = Allocation(booking.share, booking.vram, booking.whole, (booking.peak_mib or 0) + 100)
    memory, share = allocated_mib(booking, total, spike), allocated_share(booking, total, spike)
    assert allocated_mib(seen_more, total, spike) >= memory
    assert allocated_share(seen_more, total, spike) >= share >= 1
    assert share <= 1000
    if booking.vram is not None and not booking.whole:
        assert memory >= booking.vram
    if not booking.whole and (booking.vram is not None or booking.share):
        assert memory >= (booking.peak_mib or 0) or booking.vram == memory
