"""Reads the events of a store, oldest first, with or without a running scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.store.events import events_after, id_before_last, newest_event_id
from gpu_scheduler.store.store import Store

_BATCH_SIZE = 1000


class EventReader:
    """Reads the events that follow a given event in a store.

    after: the id of that event; tolerance: the fraction by which an accurate declaration may be off.
    """

    def __init__(self, store: Store, after: int) -> None:
        self._store = store
        self._after = after
        self._version: int | None = None
        self.tolerance = store.recorded_options().tolerance

    def new_events(self) -> Iterator[Event]:
        """Yields the events that were recorded since the last call."""
        version = self._store.db.data_version
        if version == self._version:
            return
        self._version = version
        while found := events_after(self._store, self._after, _BATCH_SIZE):
            self._after = found[-1].id
            yield from found


def read_events(location: Location, after: int) -> tuple[list[Event], int]:
    """Returns at most 1,000 events with a higher id than `after`, and the id of the newest event.

    If events between are missing, because jobs were forgotten, the first one has an id above `after` + 1.
    """
    with open_store(location, read_only=True) as store, store.snapshot():
        return events_after(store, after, _BATCH_SIZE), newest_event_id(store)


@contextmanager
def open_events(location: Location, last: int | None) -> Iterator[EventReader]:
    """Opens the events, starting with the newest `last` events; None means all events."""
    with open_store(location, read_only=True) as store:
        yield EventReader(store, 0 if last is None else id_before_last(store, last))
