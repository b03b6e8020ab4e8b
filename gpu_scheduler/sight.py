"""What the folder of an attempt says, in the words of the core. For the loop and for readers alike."""

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
    """A row of `Store.unsettled` with what the attempt's folder says now; an ended one needs no look."""
    if row["outcome"]:
        return attempt_fact(row, Sighting())
    if store.foreign is not None:
        return attempt_fact(row, Sighting(claim="unknown"))  # its processes are those of another host
    try:
        seen = sight(store, row)
    except OSError as error:
        where = store.home.attempt(row["job_id"], row["number"], row["token"])
        seen = Sighting(claim="unknown", strange=(f"{where}: {error.strerror}",))
    evidence = None
    if seen.result is not None and is_failure(seen.result):
        # No other log is touched, and no reader pays for what it takes to read one.
        from gpu_scheduler.evidence import evidence_of

        evidence = evidence_of(store, row, seen)
    return attempt_fact(row, seen, evidence)


def over(store: Store) -> frozenset[int]:
    """The attempts that hold GPUs on the record and of which no process is left; for use while no scheduler
    is up. A runner that has published its result is about to end, and counts as none."""
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
            seen = sight(store, row)
        except OSError:
            return pids
        if seen.result is not None and seen.pid is not None:
            pids.discard(seen.pid)
    return pids


def runner_of(row: sqlite3.Row) -> Runner | None:
    """The process that the record knows to run an attempt."""
    if row["runner_pid"] is None:
        return None
    return Runner(row["runner_pid"], row["runner_ticks"], row["boot_id"])


def sight(store: Store, row: sqlite3.Row) -> Sighting:
    """What the folder of an attempt says now. Raises OSError."""
    folder = store.home.attempt(row["job_id"], row["number"], row["token"])
    seen = observe(folder, row["token"], runner_of(row))
    stop = StopNote(seen.stop.cause, seen.stop.grace_s, seen.stop.follow) if seen.stop else None
    told = seen.result
    result = (
        ResultNote(
            told.cause, told.exit_code, told.signal, told.began, told.message, told.survivors,
            told.started_at, told.ended_at, told.oom_kills, told.shortage,
        )
        if told
        else None
    )  # fmt: skip
    return Sighting(
        seen.claim, seen.pid, seen.session, stop, seen.withdrawn, result, seen.log, seen.strange, seen.window,
        None if seen.runner is None else (seen.runner.pid, seen.runner.start_ticks), seen.damage,
        seen.is_there,
    )  # fmt: skip
