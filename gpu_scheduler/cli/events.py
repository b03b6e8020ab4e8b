"""`events`: prints what happened, read from the store, with or without a running scheduler."""

from __future__ import annotations

import io
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from gpu_scheduler.cli.record import opened
from gpu_scheduler.core.event import Event
from gpu_scheduler.store.events import before_last
from gpu_scheduler.store.events import events as read
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.events import dated, to_json

_LOOK_EVERY_S = 0.2
_AT_A_TIME = 1000


def events(options: Namespace) -> int:
    """Prints the events, oldest first; with --follow also new ones."""
    with opened(options, foreign=not options.follow) as store:
        tolerance = started_with(store).tolerance
        told: Callable[[Event], str] = to_json if options.jsonl else lambda event: dated(event, tolerance)
        after = 0 if options.lines is None else before_last(store, options.lines)
        after = _print(store, after, told)
        if options.follow:
            _follow(store, after, told)
    return 0


def _print(store: Store, after: int, told: Callable[[Event], str]) -> int:
    """Prints the events after this id; returns the id of the last one."""
    while found := read(store, after, _AT_A_TIME):
        sys.stdout.writelines(f"{told(event)}\n" for event in found)
        after = found[-1].id
    sys.stdout.flush()
    return after


def _follow(store: Store, after: int, told: Callable[[Event], str]) -> None:
    seen = None
    while True:
        version = store.db.connection.execute("PRAGMA data_version").fetchone()[0]
        if version != seen:
            seen = version
            after = _print(store, after, told)
        _pause()


def _pause() -> None:
    """Waits until the next poll. Raises BrokenPipeError once nobody reads the output any more."""
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:
        time.sleep(_LOOK_EVERY_S)
        return
    gone = select.poll()
    gone.register(fd, 0)
    if gone.poll(_LOOK_EVERY_S * 1000):
        raise BrokenPipeError
