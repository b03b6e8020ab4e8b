"""Gives child processes the default signal handling, even if the tests run with ignored signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def default_signals() -> Iterator[None]:
    """Replaces ignored signals with handlers: the one of Python for SIGINT, else one that does nothing.

    If the tests run under `nohup`, or after `&` in a script, every program would inherit ignored signals.
    Handlers are not inherited, so children get the default handling.
    """
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: lambda *_: None,
        signal.SIGTERM: lambda *_: None,
    }
    ignored = [number for number in handlers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
