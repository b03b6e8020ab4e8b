"""A start goes on with a record that lies in its own folder or was moved; it refuses a copy, or makes it a
record of its own. It never signals a process of the original."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.copied import leave
from gpu_scheduler.core.facts import Settings
from gpu_scheduler.fresh import forgotten
from gpu_scheduler.sight import look_at
from gpu_scheduler.store import identity
from gpu_scheduler.store.recorder import Recorder
from gpu_scheduler.store.store import Store


@contextmanager
def settled(store: Store, options: StartOptions, settings: Settings) -> Iterator[None]:
    """Inside, the record lies in its own folder; the jobs forgotten or held for that are so for good when the
    block ends well. For the one scheduler. Raises SchedulerError.
    """
    copied = identity.verdict(store) == "copied"
    if copied and not (options.fresh or options.as_copy):
        identity.refuse_copy(store)
    if copied:
        identity.refuse_links(store)
    if options.fresh:
        with forgotten(store, copied=copied):
            identity.settle_in(store, new=copied)
            yield
    elif copied:
        with store.db.transaction():
            _leave_all(store, settings)
            identity.settle_in(store, new=True)
            yield
    else:
        identity.settle_in(store)
        yield


def _leave_all(store: Store, settings: Settings) -> None:
    known = identity.recorded(store)
    assert known is not None
    now = Clock().now()
    actions = []
    for row in store.unsettled():
        actions += leave(look_at(store, row), now, settings, known.path)
    Recorder(store, settings).record(actions, now)
