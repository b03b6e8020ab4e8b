"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    poll: Callable[[], T], description: str = "", timeout_s: float = 60.0, every_s: float = 0.01
) -> T:
    """Polls until the value is true, and returns it. Fails at the deadline, showing the last value.

    Calls a slow `poll` less often, to leave the processor to the processes under test.
    """
    end = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        seen = poll()
        if seen:
            return seen
        now = time.monotonic()
        assert now < end, f"{description or 'condition'} not met within {timeout_s} s; last seen: {seen!r}"
        time.sleep(max(every_s, 4 * (now - began)))
