"""`events`: prints what happened, read from the store, with or without a running scheduler."""

from __future__ import annotations

import io
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.store.events import events_after as read
from gpu_scheduler.store.events import id_before_last
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.event_messages import dated_line, to_json

_POLL_INTERVAL_S = 0.2
_BATCH_SIZE = 1000


def events(options: Namespace) -> int:
    """Prints the events, oldest first; with --follow also new ones."""
    with open_store(location_of(options), allow_other_host=not options.follow) as store:
        tolerance = recorded_options(store).tolerance
        told: Callable[[Event], str] = (
            to_json if options.jsonl else lambda event: dated_line(event, tolerance)
        )
        after = 0 if options.lines is None else id_before_last(store, options.lines)
        after = _print_after(store, after, told)
        if options.follow:
            _follow(store, after, told)
    return 0


def _print_after(store: Store, after: int, format_event: Callable[[Event], str]) -> int:
    """Prints the events after this id; returns the id of the last one."""
    while found := read(store, after, _BATCH_SIZE):
        sys.stdout.writelines(f"{format_event(event)}\n" for event in found)
        after = found[-1].id
    sys.stdout.flush()
    return after


def _follow(store: Store, after: int, format_event: Callable[[Event], str]) -> None:
    seen = None
    while True:
        version = store.db.connection.execute("PRAGMA data_version").fetchone()[0]
        if version != seen:
            seen = version
            after = _print_after(store, after, format_event)
        _wait_for_next_poll()


def _wait_for_next_poll() -> None:
    """Waits until the next poll. Raises BrokenPipeError once nobody reads the output any more."""
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:
        time.sleep(_POLL_INTERVAL_S)
        return
    gone = select.poll()
    gone.register(fd, 0)
    if gone.poll(_POLL_INTERVAL_S * 1000):
        raise BrokenPipeError
