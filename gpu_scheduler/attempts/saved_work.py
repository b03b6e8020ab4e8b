"""Finds the work that an attempt has left at its end: the newest checkpoint, and whether it was complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_scheduler.attempts.progress_source import progress_source, start_of
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.command.resume import has_place, stands_in
from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.checkpoint import Checkpoint, SavedWork
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.progress.job_progress import ProgressReader, find_checkpoint
from gpu_scheduler.progress.progress_file import PROGRESS_FILE
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.deadline import within

#: Seconds after which a folder with checkpoints counts as not responding.
MAX_SEARCH_S = 2.0


def saved_work_of(store: Store, attempt: AttemptRecord, status: AttemptStatus) -> SavedWork:
    """Returns the work that an attempt which has ended has left. status: as observed in its folder."""
    job = store.job(attempt.job_id)
    assert job is not None
    attempts = store.attempts(job.id)
    return SavedWork(
        newest_checkpoint(store, job.spec, attempts),
        _is_complete(store, job.spec, attempt, status),
        stands_in(job.spec),
        has_place(job.spec),
    )


def newest_checkpoint(store: Store, spec: JobSpec, attempts: Sequence[AttemptRecord]) -> Checkpoint | None:
    """Returns the newest complete checkpoint of a job; None if there is none. attempts: all, oldest first.

    If the last attempt resumed from a checkpoint, only those that were saved since then are newer than it,
    because the user may have chosen an older one on purpose. If the folder does not respond, it is the one
    that the store has.
    """
    last = attempts[-1]
    since = start_of(attempts[0] if last.resumed_from is None else last)
    reported = str(store.data_dir.attempt_folder(last) / PROGRESS_FILE)
    job = store.job(last.job_id)
    known = None if job is None else job.checkpoint
    found = within(MAX_SEARCH_S, lambda: find_checkpoint(spec, since, reported), known)
    return found or last.resumed_from


def with_saved_times(store: Store, attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Returns the attempts, the running ones with the time at which they saved their newest checkpoint."""
    return tuple(
        replace(one, saved_at=_saved_at(store, one)) if one.state is AttemptState.RUNNING else one
        for one in attempts
    )


def _saved_at(store: Store, attempt: Attempt) -> float | None:
    job = store.job(attempt.job_id)
    assert job is not None
    checkpoint = newest_checkpoint(store, job.spec, store.attempts(job.id))
    return None if checkpoint is None else checkpoint.saved_at


def _is_complete(store: Store, spec: JobSpec, attempt: AttemptRecord, status: AttemptStatus) -> bool | None:
    """Returns whether an attempt that was asked to save its work, and exited with code 0, had reached N of N.

    None if its progress is not known, or if the question does not arise.
    """
    result = status.result
    if result is None or result.exit_code != 0:
        return None
    if result.cause != "preempted" and (result.cause is not None or status.withdrawn is None):
        return None
    source = progress_source(store, spec, replace(attempt, log=attempt.log or status.log))
    now = Clock().now().wall
    progress = within(MAX_SEARCH_S, lambda: ProgressReader().read(source, now).progress, None)
    return None if progress is None or progress.total is None else progress.is_complete
