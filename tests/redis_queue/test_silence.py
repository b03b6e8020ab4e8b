"""A box is silent only after enough readings of one counter, without a gap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_scheduler.redis_queue.agent import Silence
from gpu_scheduler.redis_queue.queue import Times


def silent_for(readings: Sequence[tuple[float, str]]) -> float | None:
    """Returns for how long a box was silent after these readings of (time, counter); None if it was not."""
    silence = Silence(Times())
    found: dict[str, float] = {}
    for at, counter in readings:
        found = silence.read({"box": counter}, at)
    return found.get("box")


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(0, "7")], None),
        ([(0, "7"), (15, "7"), (30, "7"), (45, "7")], None),
        ([(0, "7"), (15, "7"), (30, "7"), (45, "7"), (60, "7")], 60),
        ([(0, "7"), (20, "7"), (40, "7"), (60, "7")], 60),
        ([(0, "7"), (21, "7"), (40, "7"), (60, "7")], None),  # a gap
        ([(0, "7"), (15, "7"), (300, "7")], None),  # this box was paused
        ([(0, "7"), (15, "7"), (30, "8"), (45, "8"), (60, "8"), (75, "8")], None),
        ([(0, "7"), (15, "7"), (30, "8"), (45, "8"), (60, "8"), (75, "8"), (90, "8")], 60),
        ([(0, "7"), (15, "8"), (30, "7"), (45, "7"), (60, "7"), (75, "7")], None),  # data were lost
    ],
)
def test_silence_of_a_box(readings: Sequence[tuple[float, str]], expected: float | None) -> None:
    assert silent_for(readings) == expected


def test_an_outage_starts_again() -> None:
    silence = Silence(Times())
    for at in (0, 15, 30, 45):
        assert silence.read({"box": "7"}, at) == {}
    silence.forget()
    assert silence.read({"box": "7"}, 60) == {}
