"""Accepts a store in its own folder or a moved one at start; refuses a copy, or makes it a separate store.

No process of the original is ever signalled.
"""

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
    """Adopts the present folder of the store for the block, and for good if the block succeeds.

    With `--fresh`, all jobs are forgotten; with `--as-copy`, the active jobs of a copy are held. The caller
    must hold the locks. Raises SchedulerError.
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
