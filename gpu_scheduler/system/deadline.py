"""Limits the time for which a caller waits for files, because a network folder may not respond."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Found = TypeVar("_Found")


def start_thread(work: Callable[[], object]) -> bool:
    """Starts a thread that does not keep the program from ending; returns False if that fails.

    threading.Thread.start would wait forever for a thread that ends, for lack of memory, before it runs.
    """
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:
        return False  # too many threads run
    return True


def within(timeout_s: float, look: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Returns what `look` returns, or `otherwise` if that takes longer. Raises the errors of `look`.

    A look that takes too long goes on in its own thread, which does not keep the program from ending.
    """
    found: list[_Found] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(look())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            errors.append(error)
        ended.set()

    if not start_thread(run):
        return otherwise
    ended.wait(timeout_s)
    if errors:
        raise errors[0]
    return found[0] if found else otherwise


# Defers Ctrl-C while a change is recorded, so that the user learns of every recorded change.


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
