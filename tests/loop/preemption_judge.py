"""Judges the history of a store in which jobs preempted others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import zip_longest

from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.store import Store


def history_faults(store: Store, touched: Collection[int], counts: Counter[str]) -> Iterator[str]:
    """Yields what went wrong in a store without unfinished jobs. counts: what happened, added to.

    touched: the jobs that the user has cancelled, held or changed, of which less is demanded.
    """
    if store.db.rows("SELECT 1 FROM reservation"):
        yield "a reservation is left"
    for (job_id,) in store.db.rows("SELECT id FROM job"):
        yield from _reservation_faults(store, job_id, job_id in touched, counts)
        yield from _victim_faults(store, job_id, job_id in touched, counts)


def _reservation_faults(store: Store, job_id: int, touched: bool, counts: Counter[str]) -> Iterator[str]:
    """Checks that a job starts on the GPUs reserved for it, unless the user has interfered."""
    reserved: list[int] | None = None
    for event in events_of_job(store, job_id):
        if event.kind == EventKind.GPUS_RESERVED:
            if reserved is not None:
                yield f"job {job_id} has two reservations"
            reserved = event.data["gpus"]
            counts["preemptions"] += 1
        elif event.kind == EventKind.STARTING and reserved is not None:
            if event.data["gpus"] != reserved:
                yield f"job {job_id} started on {event.data['gpus']} instead of {reserved}"
            counts["starts on reserved GPUs"] += 1
            reserved = None
        elif reserved is not None and event.kind in (
            EventKind.RESERVATION_DROPPED, EventKind.HELD, EventKind.FINISHED,
        ):  # fmt: skip
            if not touched:
                yield f"job {job_id} preempted others in vain: {event.kind}"
            counts["reservations that the user ended"] += 1
            reserved = None
    if reserved is not None:
        yield f"job {job_id} did not start"


def _victim_faults(store: Store, job_id: int, touched: bool, counts: Counter[str]) -> Iterator[str]:
    """Checks that a job was preempted only for more important ones, and was queued again each time."""
    job, attempts = store.job(job_id), store.attempts(job_id)
    assert job is not None
    for attempt, following in zip_longest(attempts, attempts[1:]):
        preemptor = None if attempt.preempted_for is None else store.job(attempt.preempted_for)
        if preemptor is None or attempt.outcome is not Outcome.PREEMPTED:
            continue
        counts["victims"] += 1
        if job.priority <= preemptor.priority:
            yield f"job {job_id} was preempted for job {preemptor.id}, which is not more important"
        if not touched and (following is None or not following.follows_preemption):
            yield f"job {job_id} was preempted and did not start again"
    if job.fail_retries_used > sum(attempt.outcome is Outcome.FAILED for attempt in attempts):
        yield f"job {job_id} lost retries"
