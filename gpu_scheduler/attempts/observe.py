"""Observes attempts: reads their folders into the values of the core, for the loop and for front ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpu_scheduler.attempts.folder_status import observe
from gpu_scheduler.attempts.sweep import processes_of
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.failure.explanation import is_failure
from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.store.attempt_rows import attempt_from_record
from gpu_scheduler.store.records import ActiveAttemptRecord, AttemptRecord
from gpu_scheduler.store.store import Store


def observe_attempt(store: Store, row: ActiveAttemptRecord) -> Attempt:
    """Returns the attempt of a row of `Store.unsettled` with its current status; an ended one is not read."""
    if row["outcome"]:
        return attempt_from_record(row, AttemptStatus())
    if store.other_host is not None:
        return attempt_from_record(row, AttemptStatus(claim="unknown"))  # its processes run on another host
    try:
        status = read_status(store, row)
    except OSError as error:
        where = store.data_dir.attempt_folder(row["job_id"], row["number"], row["token"])
        status = AttemptStatus(claim="unknown", anomalies=(f"{where}: {error.strerror}",))
    context = None
    if status.result is not None and is_failure(status.result):
        # Only the log of a failure is read, and only then is this module imported.
        from gpu_scheduler.attempts.failure_context import failure_context_of

        context = failure_context_of(store, row, status)
    return attempt_from_record(row, status, context)


def attempts_without_processes(store: Store) -> frozenset[int]:
    """Returns the ids of attempts with an allocation but without processes, while no scheduler is running.

    A runner that has published its result is about to end and does not count as a process.
    """
    rows = [row for row in store.active_attempts() if row["released_boot"] is None]
    boot_id = Clock().boot_id
    folders = {
        row["token"]: store.data_dir.attempt_folder(row["job_id"], row["number"], row["token"])
        for row in rows
        if row["boot_id"] == boot_id
    }
    alive = processes_of(folders) if folders else {}
    return frozenset(row["id"] for row in rows if not _processes(store, row, alive))


def _processes(store: Store, row: ActiveAttemptRecord, alive: Mapping[str, Collection[int]]) -> set[int]:
    pids = set(alive.get(row["token"], ()))
    if pids and not row["outcome"]:
        try:
            status = read_status(store, row)
        except OSError:
            return pids
        if status.result is not None and status.pid is not None:
            pids.discard(status.pid)
    return pids


def read_status(store: Store, row: AttemptRecord) -> AttemptStatus:
    """Reads the status of an attempt from its folder. Raises OSError."""
    folder = store.data_dir.attempt_folder(row["job_id"], row["number"], row["token"])
    return observe(folder, row["token"], row.runner)
