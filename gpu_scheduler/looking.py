"""The facts of a round: the record, the folder of each open attempt, the processes left, the GPUs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.core.facts import (
    Attempt,
    Cancel,
    Facts,
    JobFact,
    Line,
    Now,
    QueuedJob,
    Settings,
    Wish,
)
from gpu_scheduler.core.needs import Ask, LlmConfig
from gpu_scheduler.core.settle import needs_scan
from gpu_scheduler.core.sighting import Sighting
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.gpus import GpuWatch
from gpu_scheduler.runner.protocol import is_made, tokens_alive
from gpu_scheduler.sight import sight
from gpu_scheduler.store.readings import job_fact
from gpu_scheduler.store.store import Store

#: Jobs of one ask that a round looks at; a round that starts all of them is followed by another.
HEADS = 64


def look(store: Store, watch: GpuWatch, config: LlmConfig, settings: Settings, now: Now) -> Facts:
    """Everything that one round decides from."""
    attempts = _attempts(store)
    tokens = {attempt.token: attempt.attempt_id for attempt in attempts}
    paused = {row["uuid"]: (row["idx"], bool(row["paused"])) for row in store.gpus()}
    wishes = tuple(
        Wish(row["id"], row["verb"], row["target"], json.loads(row["args"])) for row in store.open_wishes()
    )
    return Facts(
        now=now,
        settings=settings,
        config=config,
        gpus=watch.gpus(paused, tokens),
        complete=watch.snapshot is not None,
        blind=watch.failure,
        attempts=attempts,
        lines=_lines(store, now),
        wishes=wishes,
        jobs=_jobs(store, {wish.target for wish in wishes}),
    )


def _attempts(store: Store) -> tuple[Attempt, ...]:
    attempts = [_attempt(store, row) for row in store.unsettled()]
    wanted = [attempt.token for attempt in attempts if needs_scan(attempt)]
    if not wanted:
        return tuple(attempts)
    alive = tokens_alive(wanted)
    return tuple(replace(a, survivors=alive.get(a.token, ())) if a.token in wanted else a for a in attempts)


def _attempt(store: Store, row: sqlite3.Row) -> Attempt:
    folder = store.home.attempt(row["job_id"], row["number"], row["token"])
    outcome = Outcome(row["outcome"]) if row["outcome"] else None
    return Attempt(
        attempt_id=row["id"],
        job_id=row["job_id"],
        token=row["token"],
        boot_id=row["boot_id"],
        job_state=JobState(row["job_state"]),
        number=row["number"],
        gpus=tuple(json.loads(row["gpus"])),
        share=row["share"],
        baseline_mib=json.loads(row["baseline"]),
        outcome=outcome,
        sighting=Sighting() if outcome else _sight(folder, row["token"]),
        made=outcome is not None or is_made(folder),
        launches=row["launches"],
        launch_deadline=row["deadline_boot"],
        launch_error=row["launch_error"],
        stopping_at=row["stopping_boot"],
        signalled_at=row["signalled_boot"],
        dead_at=row["dead_boot"],
        swept_at=row["swept_boot"],
        released_at=row["released_boot"],
        cancel=Cancel(row["cancel_cause"], row["cancel_grace_s"]) if row["cancel_cause"] else None,
        launch_failures=row["launch_failures"],
        lineless=row["job_source"].startswith("file:") and not row["has_line"],
    )


def _sight(folder: Path, token: str) -> Sighting:
    try:
        return sight(folder, token)
    except OSError as error:
        return Sighting(claim="unknown", strange=(f"{folder}: {error.strerror}",))


def _lines(store: Store, now: Now) -> tuple[Line, ...]:
    reasons = store.waiting()
    lines = []
    for ask in store.asks():
        rows = store.startable(ask, now.boot, now.boot_id, HEADS + 1)
        jobs = tuple(
            QueuedJob(row["id"], row["priority"], row["place"], row["passed_at"] is not None) for row in rows
        )
        if jobs:
            lines.append(Line(Ask.from_key(ask), jobs[:HEADS], len(jobs) > HEADS, reasons.get(ask)))
    return tuple(lines)


def _jobs(store: Store, targets: Collection[str]) -> dict[int, JobFact]:
    found = {}
    for job_id in {int(target) for target in targets if target.isascii() and target.isdigit()}:
        row = store.job(job_id)
        if row is not None:
            found[job_id] = job_fact(row)
    return found
