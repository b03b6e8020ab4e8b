"""Gives child processes the default signal handling, even if the tests run with ignored signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def default_signals() -> Iterator[None]:
    """Replaces the handling of ignored signals with handlers that do nothing.

    If the tests run under `nohup`, or after `&` in a script, every program would inherit ignored signals.
    Handlers are not inherited, so children get the default handling.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
