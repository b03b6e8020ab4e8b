"""Forgets all jobs for `start --fresh`, unless a job still has a living process or may still begin."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from gpu_scheduler.attempts.executor import LOCAL_EXECUTORS, AttemptRef
from gpu_scheduler.attempts.folder_status import observe
from gpu_scheduler.attempts.observe import attempt_ref
from gpu_scheduler.attempts.runner_control import void_claim
from gpu_scheduler.attempts.sweep import processes_of
from gpu_scheduler.clock import Clock
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import attempt_import
from gpu_scheduler.store.attempt_folders import (
    AttemptFolder,
    list_attempt_folders,
    read_origin,
    token_of,
    unknown_to_store,
)
from gpu_scheduler.store.forget import forgetting_jobs
from gpu_scheduler.store.inspection import StoreCondition, highest_known_ids
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Seconds that a runner may take to exit after it has published its result.
RUNNER_EXIT_S = 2.0
_POLL_S = 0.02
_UNRECORDED_REMEDY = "`start --restore` adds running jobs to the store again; then `stop --jobs` ends them"
_DEVELOPMENT_REMEDY = "end them with the version that started them"


@contextmanager
def jobs_forgotten(store: Store, *, copied: bool = False) -> Iterator[None]:
    """Removes all jobs from the store while the block runs, and for good if the block succeeds.

    The caller must hold the locks. If a job is active, raises SchedulerError and changes nothing. copied:
    this store is a copy, so its active jobs belong to the original and do not matter.
    """
    if not copied:
        refuse_active(store, void_claims=True)
    with forgetting_jobs(store) as jobs:
        # Even if the store was lost, the ids in folders and backups must not be reused.
        attempt_import.raise_id_sequences(store.db.connection, highest_known_ids(store.data_dir))
        yield
    log.info("forgot %d job%s", jobs, "s" * (jobs != 1))


def refuse_active(store: Store, *, void_claims: bool = False) -> None:
    """Raises SchedulerError with the remedy if a job is active, whatever its state in the store.

    void_claims: also claim all attempts that nobody has claimed, so that none of them can begin.
    """
    _wait_then_refuse(
        lambda: _active_jobs(store, void_claims),
        "`stop --jobs` ends the running jobs; `start` without --fresh keeps them",
    )


def refuse_unrecorded(condition: StoreCondition) -> None:
    """Raises SchedulerError if an attempt is active. condition: describes a store that cannot be read."""
    attempts = unknown_attempts(condition.folders)
    remedy = _DEVELOPMENT_REMEDY if condition.state == "development" else _UNRECORDED_REMEDY
    _wait_then_refuse(lambda: _active_jobs_of(attempts), remedy)


def _wait_then_refuse(find_active: Callable[[], dict[int, bool]], remedy: str) -> None:
    end = time.monotonic() + RUNNER_EXIT_S
    while (left := find_active()) and all(left.values()) and time.monotonic() < end:
        time.sleep(_POLL_S)
    if left:
        which = f"job {min(left)} is" if len(left) == 1 else f"jobs {', '.join(map(str, sorted(left)))} are"
        raise SchedulerError(f"{which} active; --fresh forgets nothing while jobs are active\n{remedy}")


def _active_jobs(store: Store, void_claims: bool) -> dict[int, bool]:
    """Returns for each active job, by id, whether its command has ended and only other processes are left."""
    boot_id, active = Clock().boot_id, store.active_attempts()
    elsewhere = {
        attempt.job_id: False
        for attempt in active
        if attempt.state.is_open and attempt.executor not in LOCAL_EXECUTORS
    }
    here = [one for one in active if one.boot_id == boot_id and one.executor in LOCAL_EXECUTORS]
    attempts = [attempt_ref(store, attempt) for attempt in here]
    attempts += unknown_attempts(unknown_to_store(list_attempt_folders(store.data_dir), store.db.connection))
    ended = {attempt.token for attempt in here if not attempt.state.is_open}
    return _active_jobs_of(attempts, ended, void_claims=void_claims) | elsewhere


def unknown_attempts(folders: Iterable[AttemptFolder]) -> list[AttemptRef]:
    """Returns the attempts in these folders that were launched since the last boot.

    Omits a folder without a token, because its attempt can never begin.
    """
    boot_id, found = Clock().boot_id, []
    for folder in folders:
        token, origin = token_of(folder), read_origin(folder)
        if token is not None and (origin is None or origin.boot_id == boot_id):
            found.append(AttemptRef(folder.job_id, folder.number, token, folder.path))
    return found


def _active_jobs_of(
    attempts: Collection[AttemptRef], ended: Collection[str] = (), *, void_claims: bool = False
) -> dict[int, bool]:
    """Like `_active_jobs`, but for these attempts. ended: tokens of attempts that ended in the store."""
    folders = {one.token: one.folder for one in attempts}
    alive = processes_of(folders, unsupervised=folders) if folders else {}
    over = {one.token: one.token in ended or _is_command_over(one, void_claims) for one in attempts}
    return {one.job_id: over[one.token] for one in attempts if one.token in alive or not over[one.token]}


def _is_command_over(attempt: AttemptRef, void_claims: bool) -> bool:
    """Returns whether an attempt's command has ended or will never begin. Other processes may be left."""
    folder, token = attempt.folder, attempt.token
    try:
        status = observe(folder, token, attempt.runner)
        if status.result is None and status.claim == "none":
            return not void_claims or void_claim(folder, token)
    except OSError as error:
        raise SchedulerError(f"{folder}: {error.strerror}; no job was forgotten") from None
    # An attempt with an invalid claim counts as active only if it has processes.
    return status.result is not None or status.claim in ("dead", "void", "invalid")
