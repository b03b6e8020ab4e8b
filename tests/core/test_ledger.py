"""Accounting of share and memory: every row of the table in docs/design.md, Accounting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.ledger import Booking, buffered, memory_of, share_of

TOTAL, SPIKE = 24_000, 0.10


@pytest.mark.parametrize(
    ("booking", "share", "memory"),
    [
        # A declared share is fixed; its memory grows with the observed peak.
        (Booking(500), 500, 12_000),
        (Booking(500, peak=10_000), 500, 12_000),
        (Booking(500, peak=10_909), 500, 12_000),
        (Booking(500, peak=11_000), 500, 12_100),
        (Booking(500, peak=20_000), 500, 22_000),
        (Booking(333), 333, 7992),
        # Declared memory; once exceeded, the buffered peak.
        (Booking(vram=6000), 250, 6000),
        (Booking(vram=6000, peak=5999), 250, 6000),
        (Booking(vram=6000, peak=6000), 250, 6000),
        (Booking(vram=6000, peak=6001), 276, 6602),
        (Booking(vram=6001), 251, 6001),
        (Booking(vram=1), 1, 1),
        (Booking(vram=24_000), 1000, 24_000),
        (Booking(vram=20_000, peak=23_000), 1000, 25_300),
        # Both: the share as declared, the memory like declared memory.
        (Booking(200, vram=6000), 200, 6000),
        (Booking(200, vram=6000, peak=9000), 200, 9900),
        (Booking(900, vram=1000), 900, 1000),
        # Alone, exclusive, or nothing declared.
        (Booking(1000, whole=True), 1000, 24_000),
        (Booking(vram=6000, whole=True), 1000, 24_000),
        (Booking(500, vram=6000, whole=True, peak=100), 1000, 24_000),
        (Booking(whole=True), 1000, 24_000),
        (Booking(), 1000, 24_000),
        (Booking(peak=5), 1000, 24_000),
    ],
)
def test_charges_an_allocation_in_share_and_memory(booking: Booking, share: int, memory: int) -> None:
    assert (share_of(booking, TOTAL, SPIKE), memory_of(booking, TOTAL, SPIKE)) == (share, memory)


@pytest.mark.parametrize("total", [None, 0])
@pytest.mark.parametrize(
    ("booking", "share"),
    [
        (Booking(500), 500),
        (Booking(vram=6000), 1000),
        (Booking(500, vram=6000), 500),
        (Booking(500, whole=True), 1000),
        (Booking(), 1000),
    ],
)
def test_declared_memory_fills_a_gpu_of_unknown_size(booking: Booking, share: int, total: int | None) -> None:
    assert share_of(booking, total, SPIKE) == share


@pytest.mark.parametrize(
    ("peak", "spike", "held"),
    [(10_000, 0.1, 11_000), (10_001, 0.1, 11_002), (60, 0.1, 66), (0, 0.1, 0), (9, 0.0, 9), (7, 0.5, 11)],
)
def test_the_spike_buffer_is_exact_and_rounded_up(peak: int, spike: float, held: int) -> None:
    assert buffered(peak, spike) == held


BOOKINGS = st.builds(
    Booking,
    st.sampled_from([0, 1, 333, 500, 1000]),
    st.none() | st.integers(1, 30_000),
    st.booleans(),
    st.none() | st.integers(0, 30_000),
)


@settings(deadline=None)
@given(BOOKINGS, st.integers(1, 100_000), st.sampled_from([0.0, 0.1, 0.5]))
def test_an_allocation_never_counts_less_than_declared_and_grows_with_its_peak(
    booking: Booking, total: int, spike: float
) -> None:
    seen_more = Booking(booking.share, booking.vram, booking.whole, (booking.peak or 0) + 100)
    memory, share = memory_of(booking, total, spike), share_of(booking, total, spike)
    assert memory_of(seen_more, total, spike) >= memory
    assert share_of(seen_more, total, spike) >= share >= 1
    assert share <= 1000
    if booking.vram is not None and not booking.whole:
        assert memory >= booking.vram
    if not booking.whole and (booking.vram is not None or booking.share):
        assert memory >= (booking.peak or 0) or booking.vram == memory
