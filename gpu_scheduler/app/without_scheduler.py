"""Ends jobs and updates the state file while no scheduler is running.

The file `stop` in the attempt folder tells the runner to end its job. If the runner has died, a sweep ends
the job. A request is recorded too, so that the next scheduler records the job as cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from gpu_scheduler.app.answers import StopResult
from gpu_scheduler.app.job_views import ViewContext, job_view
from gpu_scheduler.attempts.executor import LOCAL_EXECUTORS
from gpu_scheduler.attempts.folder import request_stop
from gpu_scheduler.attempts.observe import (
    attempts_without_processes,
    observe_attempt,
    read_status,
)
from gpu_scheduler.attempts.sweep import sweep
from gpu_scheduler.core.model.attempt_status import AttemptStatus, StopRequest
from gpu_scheduler.core.model.states import ACTIVE, AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling.reconcile_attempt import has_unknown_runner
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import state_file
from gpu_scheduler.store.job_lists import interrupted_jobs, open_jobs
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.records import ActiveAttemptRecord, AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store

#: Seconds that a runner may need after the grace to end its job (docs/design.md, Reconciling).
STOP_MARGIN_S = 10.0
_POLL_INTERVAL_S = 0.02


def observed_job(store: Store, job: JobRecord) -> JobRecord:
    """Returns a job in the state that the next round records.

    A job whose runner is unknown counts as interrupted, because only a process scan can tell.
    """
    from gpu_scheduler.clock import Clock

    open_ones = (one for one in store.active_attempts() if one.job_id == job.id and one.state.is_open)
    attempt = next(open_ones, None) if job.state in ACTIVE else None
    if attempt is None:
        return job
    fact, started = observe_attempt(store, attempt), store.recorded_options()
    context = ViewContext(
        Clock().now(),
        open_attempts={attempt.id: fact},
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
    )
    observed = job_view(job, attempt, context).record
    if observed.state in ACTIVE and has_unknown_runner(fact):
        return observed._replace(state=JobState.HELD, held_by=Outcome.INTERRUPTED.value)
    return observed


def has_interrupted_jobs(store: Store) -> bool:
    """Returns whether any job is interrupted, recorded or not."""
    return bool(interrupted_jobs(store)) or any(
        observed_job(store, job).is_interrupted for job in open_jobs(store, tuple(ACTIVE))
    )


def open_attempts(store: Store) -> list[ActiveAttemptRecord]:
    """Returns the attempts that are open in the store and have no result in their folder."""
    attempts = [attempt for attempt in store.active_attempts() if attempt.state.is_open]
    return [attempt for attempt in attempts if observed_status(store, attempt).result is None]


def end_jobs(store: Store, jobs: Collection[int], grace_s: float) -> dict[int, StopResult]:
    """Ends the open attempts of these jobs and waits until they are over; returns the result for each job.

    Jobs without an open attempt are left out. Raises SchedulerError if a folder cannot be written, or if the
    store is a copy, because the attempts in a copy belong to the original.
    """
    refuse_copy(store)
    attempts = [one for one in store.active_attempts() if one.state.is_open and one.job_id in jobs]
    elsewhere = [attempt for attempt in attempts if attempt.executor not in LOCAL_EXECUTORS]
    attempts = [attempt for attempt in attempts if attempt.executor in LOCAL_EXECUTORS]
    stop = StopRequest("cancelled", grace_s)
    for attempt in attempts:
        write_stop(store, attempt, stop)
    end = time.monotonic() + grace_s + STOP_MARGIN_S
    ended = {attempt.job_id: _wait_until_over(store, attempt, stop, end) for attempt in attempts}
    return ended | {attempt.job_id: StopResult.RUNS_ELSEWHERE for attempt in elsewhere}


def write_stop(store: Store, attempt: AttemptRecord, stop: StopRequest) -> None:
    """Writes the file `stop` of an attempt and wakes its runner. Raises SchedulerError if it cannot."""
    folder = store.data_dir.attempt_folder(attempt)
    try:
        request_stop(folder, attempt.token, stop, attempt.runner)
    except OSError as error:
        raise SchedulerError(f"job {attempt.job_id} cannot be stopped: {folder}: {error.strerror}") from None


def refresh_state_file(store: Store) -> list[float] | None:
    """Writes the current shares into the state file if jobs have ended since the last scheduler wrote it.

    The store is not changed: the next scheduler finds the ends of the jobs in their attempt folders.

    Returns the new shares; None if nothing changed or the file must not be written (a scheduler is running,
    or the file was deleted, is broken, or was last written by the older scheduler).
    """
    from gpu_scheduler.clock import Clock
    from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
    from gpu_scheduler.store.scheduler_lock import InstanceLock

    path = store.data_dir.state_file
    # While this process holds the lock, no scheduler can start and write the file at the same time.
    lock = InstanceLock(store.data_dir.lock)
    try:
        trust = store.recorded_options().trust_files
        before = _gpu_status(path, trust) if lock.acquire() else None
        if before is None:
            return None
        now = Clock().now().boot
        watch = StateFileWatcher(store, attempts_without_processes(store), trust=trust)
        watch.start(now)
        watch.write(now, at_once=True)
        after = _gpu_status(path, trust)
        return after if after != before else None
    finally:
        lock.release()


def _gpu_status(path: Path, trust: bool) -> list[float] | None:
    """Returns the shares in a state file that this program wrote; None for any other file."""
    try:
        state = state_file.parse(state_file.read(path, trust=trust) or b"")
    except (OSError, ValueError):
        return None
    shares = state.get("gpu_status")
    return shares if isinstance(shares, list) and not state_file.is_from_older_scheduler(state) else None


def _wait_until_over(
    store: Store, attempt: ActiveAttemptRecord, stop: StopRequest, deadline: float
) -> StopResult:
    while (status := observed_status(store, attempt)).result is None:
        if status.claim not in ("live", "unclaimed"):
            break
        if time.monotonic() >= deadline:
            return StopResult.PROCESSES_LEFT
        if status.stop is None or status.stop.cause != stop.cause:
            # A `preempt` that read the file before this command wrote it has replaced this request.
            write_stop(store, attempt, stop)
        time.sleep(_POLL_INTERVAL_S)
    if status.result is not None:
        return StopResult.CANCELLED if status.result.cause == "cancelled" else StopResult.HAD_ENDED
    if status.claim == "unlocked":
        return StopResult.RUNNER_UNLOCKED
    if attempt.watched_pid is not None:
        return StopResult.NOT_WATCHED
    never_began = status.claim == "none" and attempt.state is AttemptState.STARTING
    if status.claim == "void" or never_began:
        return StopResult.NEVER_BEGAN
    limit_s = stop.grace_s + STOP_MARGIN_S
    if sweep(store.data_dir.attempt_folder(attempt), attempt.token, stop.grace_s, limit_s):
        return StopResult.PROCESSES_LEFT
    return StopResult.RUNNER_HAD_DIED if status.claim == "dead" else StopResult.CANCELLED


def observed_status(store: Store, attempt: AttemptRecord) -> AttemptStatus:
    """Reads the status of an attempt on this machine. Raises SchedulerError if its folder cannot be read."""
    try:
        return read_status(store, attempt)
    except OSError as error:
        raise SchedulerError(
            f"{store.data_dir.attempt_folder(attempt)} cannot be read: {error.strerror}"
        ) from None
