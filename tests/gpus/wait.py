"""Waits, with a deadline, for a condition that depends on other processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Returns once `condition()` returns a true value; fails at the deadline and shows the last value."""
    end = time.monotonic() + timeout_s
    while not (last := condition()):
        assert time.monotonic() < end, f"still {last!r} after {timeout_s:g} s: {condition}"
        time.sleep(0.005)
