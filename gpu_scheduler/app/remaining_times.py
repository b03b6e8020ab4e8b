"""Adds to the facts of a round the time that is left of each running attempt, if its progress shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_scheduler.attempts.progress_source import progress_source
from gpu_scheduler.attempts.running_progress import with_remaining_times
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.settings import QueueOrder
from gpu_scheduler.progress.job_progress import ProgressReader
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.progress.eta import JobProgress


def with_progress_of_attempts(facts: Facts, store: Store) -> Facts:
    """Returns the facts of a round with the times that are left, if GPUs are ever reserved by queue order."""
    if facts.settings.queue_order is not QueueOrder.RESERVE:
        return facts
    return replace(facts, attempts=with_remaining_times(facts.attempts, _progress(facts, store), facts.now))


def _progress(facts: Facts, store: Store) -> dict[int, JobProgress]:
    """Returns the progress of the running attempts, by attempt id."""
    reader, found = ProgressReader(), {}
    running = {one.attempt_id for one in facts.attempts if one.state is AttemptState.RUNNING}
    for record in store.active_attempts():
        job = store.job(record.job_id) if record.id in running else None
        if job is not None:
            found[record.id] = reader.read(progress_source(store, job.spec, record), facts.now.wall)
    return found
