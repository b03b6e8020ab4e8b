"""Checks at `start` whether the store is in its own folder; refuses a copy, or makes it a separate store.

A store whose folder was moved is accepted. The processes of a copy's original are never signalled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.scheduling.restored_attempts import detach, detach_process
from gpu_scheduler.scheduler.fresh_start import jobs_forgotten
from gpu_scheduler.store import location
from gpu_scheduler.store.adopted_jobs import jobs_to_watch
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter


@contextmanager
def in_own_folder(store: Store, options: StartOptions) -> Iterator[None]:
    """Records the store's current folder as its own while the block runs, and for good if the block succeeds.

    With `--fresh`, forgets all jobs. With `--as-copy`, holds the active jobs of a copy. The caller must hold
    the locks. Raises SchedulerError.
    """
    copied = location.location_verdict(store) == "copied"
    if copied and not (options.fresh or options.as_copy):
        location.refuse_copy(store)
    if copied:
        location.refuse_hard_link(store)
    if options.fresh:
        with jobs_forgotten(store, copied=copied):
            location.adopt_folder(store, new_id=copied)
            yield
    elif copied:
        with store.db.transaction():
            _leave_to_original(store, options)
            location.adopt_folder(store, new_id=True)
            yield
    else:
        location.adopt_folder(store)
        yield


def _leave_to_original(store: Store, options: StartOptions) -> None:
    known = location.recorded_location(store)
    assert known is not None
    now = Clock().now()
    actions = []
    for attempt in store.active_attempts():
        actions += detach(observe_attempt(store, attempt), now, options, known.path)
    writer = StoreWriter(store, options)
    writer.record(actions, now)
    # A job whose watcher has just ended may be among them.
    writer.record([detach_process(job.id, known.path) for job in jobs_to_watch(store)], now)
