"""Observes attempts: reads their folders into the values of the core, for the loop and for front ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.explain import is_failure
from gpu_scheduler.core.facts import Attempt
from gpu_scheduler.core.sighting import ResultNote, Sighting, StopNote
from gpu_scheduler.runner.protocol import Runner, observe, processes_of
from gpu_scheduler.store.attempts import attempt_fact
from gpu_scheduler.store.store import Store


def look_at(store: Store, row: sqlite3.Row) -> Attempt:
    """Returns the attempt of a row of `Store.unsettled` with its current status; an ended one is not read."""
    if row["outcome"]:
        return attempt_fact(row, Sighting())
    if store.foreign is not None:
        return attempt_fact(row, Sighting(claim="unknown"))  # its processes run on another host
    try:
        status = sight(store, row)
    except OSError as error:
        where = store.home.attempt(row["job_id"], row["number"], row["token"])
        status = Sighting(claim="unknown", strange=(f"{where}: {error.strerror}",))
    context = None
    if status.result is not None and is_failure(status.result):
        # Only the log of a failure is read, and only then is this module imported.
        from gpu_scheduler.evidence import evidence_of

        context = evidence_of(store, row, status)
    return attempt_fact(row, status, context)


def over(store: Store) -> frozenset[int]:
    """Returns the ids of attempts with an allocation but without processes, while no scheduler is running.

    A runner that has published its result is about to end and does not count as a process.
    """
    rows = [row for row in store.unsettled() if row["released_boot"] is None]
    boot_id = Clock().boot_id
    folders = {
        row["token"]: store.home.attempt(row["job_id"], row["number"], row["token"])
        for row in rows
        if row["boot_id"] == boot_id
    }
    alive = processes_of(folders) if folders else {}
    return frozenset(row["id"] for row in rows if not _processes(store, row, alive))


def _processes(store: Store, row: sqlite3.Row, alive: Mapping[str, Collection[int]]) -> set[int]:
    pids = set(alive.get(row["token"], ()))
    if pids and not row["outcome"]:
        try:
            status = sight(store, row)
        except OSError:
            return pids
        if status.result is not None and status.pid is not None:
            pids.discard(status.pid)
    return pids


def runner_of(row: sqlite3.Row) -> Runner | None:
    """Returns the runner of an attempt that the store has recorded; None if there is none."""
    if row["runner_pid"] is None:
        return None
    return Runner(row["runner_pid"], row["runner_ticks"], row["boot_id"])


def sight(store: Store, row: sqlite3.Row) -> Sighting:
    """Reads the status of an attempt from its folder. Raises OSError."""
    folder = store.home.attempt(row["job_id"], row["number"], row["token"])
    status = observe(folder, row["token"], runner_of(row))
    stop = StopNote(status.stop.cause, status.stop.grace_s, status.stop.follow) if status.stop else None
    ended = status.result
    result = (
        ResultNote(
            ended.cause, ended.exit_code, ended.signal, ended.began, ended.message, ended.survivors,
            ended.started_at, ended.ended_at, ended.oom_kills, ended.shortage,
        )
        if ended
        else None
    )  # fmt: skip
    return Sighting(
        status.claim, status.pid, status.session, stop, status.withdrawn, result, status.log, status.strange,
        status.window, None if status.runner is None else (status.runner.pid, status.runner.start_ticks),
        status.damage, status.is_there,
    )  # fmt: skip
