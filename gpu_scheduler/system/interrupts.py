"""Defers Ctrl-C while a change is recorded, so that the user learns of every recorded change."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Delivers a SIGINT that arrives inside the block at its end, where it raises KeyboardInterrupt.

    Only for processes with one thread, because another thread would receive the signal.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
