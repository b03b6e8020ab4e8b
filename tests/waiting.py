"""Waiting for a condition, with a deadline that tells what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(look: Callable[[], T], what: str = "", timeout_s: float = 60.0, every_s: float = 0.01) -> T:
    """The first true value of `look`. Fails with the last value seen when the time is over.

    A look that takes long is taken less often: what is waited for needs the processor, too.
    """
    end = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        seen = look()
        if seen:
            return seen
        now = time.monotonic()
        assert now < end, f"{what or 'condition'} not met within {timeout_s} s; last seen: {seen!r}"
        time.sleep(max(every_s, 2 * (now - began)))
