"""`events`: prints events as text or JSON lines."""

from __future__ import annotations

import io
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from gpu_scheduler.app.events import EventReader, open_events
from gpu_scheduler.cli.program import location_of
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.views.event_messages import dated_line, to_json

_POLL_INTERVAL_S = 0.2


def events(options: Namespace) -> int:
    """Prints the events, oldest first; with --follow, continues with new events until interrupted."""
    with open_events(location_of(options), options.lines) as reader:
        format_event: Callable[[Event], str] = (
            to_json if options.jsonl else lambda event: dated_line(event, reader.tolerance)
        )
        _print_new(reader, format_event)
        while options.follow:
            _wait_for_next_poll()
            _print_new(reader, format_event)
    return 0


def _print_new(reader: EventReader, format_event: Callable[[Event], str]) -> None:
    sys.stdout.writelines(f"{format_event(event)}\n" for event in reader.new_events())
    sys.stdout.flush()


def _wait_for_next_poll() -> None:
    """Waits until the next poll. Raises BrokenPipeError if nobody reads the output any more."""
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:
        time.sleep(_POLL_INTERVAL_S)
        return
    gone = select.poll()
    gone.register(fd, 0)
    if gone.poll(_POLL_INTERVAL_S * 1000):
        raise BrokenPipeError
