"""Gathers the facts of a round: the store, the status of each open attempt, the survivors, the GPUs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.core.facts import (
    Attempt,
    Facts,
    JobFact,
    Line,
    QueuedJob,
    Settings,
    Wish,
)
from gpu_scheduler.core.needs import Ask, LlmConfig
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.settle import needs_scan
from gpu_scheduler.gpus import GpuWatch, as_recorded
from gpu_scheduler.runner.membership import Command
from gpu_scheduler.runner.protocol import is_made, processes_of, recorded_command
from gpu_scheduler.sight import look_at
from gpu_scheduler.store.measured import Learned
from gpu_scheduler.store.readings import job_fact
from gpu_scheduler.store.store import Store

#: Jobs of one pending group that a round reads; a round that starts all of them is followed by another.
HEADS = 64


def look(
    store: Store,
    watch: GpuWatch,
    config: LlmConfig,
    settings: Settings,
    now: Now,
    trouble: str | None = None,
    *,
    placing: bool = True,
    learned: Learned | None = None,
) -> Facts:
    """Returns all facts from which one round decides.

    placing: whether jobs may be started; learned: None = needs are not learned.
    """
    rows = store.unsettled()
    folders = {row["token"]: store.home.attempt(row["job_id"], row["number"], row["token"]) for row in rows}
    attempts = _attempts(store, rows, folders, now)
    tokens = {attempt.token: attempt.attempt_id for attempt in attempts}

    def command_of(token: str) -> Command | None:
        return recorded_command(folders[token], token)

    managed = store.gpus()
    paused = {row["uuid"]: (row["idx"], bool(row["paused"])) for row in managed}
    recorded = {row["uuid"]: row for row in managed}
    sampled = watch.snapshot.gpus if attempts and watch.snapshot is not None else ()
    unmanaged = {gpu.uuid: (gpu.index, False) for gpu in sampled if gpu.uuid not in paused}
    requests = tuple(
        Wish(row["id"], row["verb"], row["target"], json.loads(row["args"])) for row in store.open_wishes()
    )
    return Facts(
        now=now,
        settings=settings,
        config=config,
        gpus=tuple(as_recorded(gpu, recorded[gpu.uuid]) for gpu in watch.gpus(paused, tokens, command_of)),
        others=watch.gpus(unmanaged, tokens, command_of),
        complete=watch.snapshot is not None,
        blind=watch.failure,
        trouble=trouble,
        attempts=attempts,
        lines=_lines(store, now) if placing else (),
        wishes=requests,
        jobs=_jobs(store, {request.target for request in requests}),
        learned=learned.needs() if learned is not None else {},
    )


def _attempts(
    store: Store, rows: Sequence[sqlite3.Row], folders: Mapping[str, Path], now: Now
) -> tuple[Attempt, ...]:
    attempts = [_attempt(store, row, folders[row["token"]]) for row in rows]
    wanted = {attempt.token: attempt for attempt in attempts if needs_scan(attempt, now)}
    if not wanted:
        return tuple(attempts)
    # A runner publishes its result after the end of all its processes; a killed one could not wait for that.
    unsupervised = [
        token
        for token, attempt in wanted.items()
        if attempt.outcome is None and attempt.sighting.result is None
    ]
    alive = processes_of({token: folders[token] for token in wanted}, unsupervised)
    return tuple(
        _scanned(store, row, attempt, alive.get(attempt.token, ())) if attempt.token in wanted else attempt
        for row, attempt in zip(rows, attempts, strict=True)
    )


def _scanned(store: Store, row: sqlite3.Row, attempt: Attempt, survivors: tuple[int, ...]) -> Attempt:
    """Returns an attempt with its surviving processes.

    Reads the folder again if none are left and the runner was not found dead, because the runner may have
    written the result between the first reading and the scan.
    """
    if not survivors and attempt.outcome is None and attempt.sighting.claim != "dead":
        attempt = replace(look_at(store, row), made=attempt.made, begun=attempt.begun)
    return replace(attempt, survivors=survivors)


def _attempt(store: Store, row: sqlite3.Row, folder: Path) -> Attempt:
    attempt = look_at(store, row)
    if attempt.outcome is not None or attempt.sighting.claim != "none":
        return attempt
    if recorded_command(folder, row["token"]) is not None:
        # The claim precedes the command: it has appeared meanwhile, or it was removed.
        return replace(look_at(store, row), made=True, begun=True)
    return replace(attempt, made=is_made(folder))


def _lines(store: Store, now: Now) -> tuple[Line, ...]:
    groups = []
    for key, reason in store.asks().items():
        rows = store.startable(key, now.boot, now.boot_id, HEADS + 1)
        jobs = tuple(
            QueuedJob(row["id"], row["priority"], row["place"], row["passed_at"] is not None) for row in rows
        )
        if jobs:
            groups.append(Line(Ask.from_key(key), jobs[:HEADS], len(jobs) > HEADS, reason))
    return tuple(groups)


def _jobs(store: Store, targets: Collection[str]) -> dict[int, JobFact]:
    found = {}
    for job_id in {int(target) for target in targets if target.isascii() and target.isdigit()}:
        row = store.job(job_id)
        if row is not None:
            found[job_id] = job_fact(row)
    return found
