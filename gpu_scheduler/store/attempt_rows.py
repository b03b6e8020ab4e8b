"""Converts the row of an attempt, joined with its job, into the core's `Attempt`; nothing else does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection

from gpu_scheduler.core.model.attempt_status import AttemptStatus, FailureContext, RunnerIdentity
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.accounting import Allocation, allocated_share
from gpu_scheduler.core.scheduling.facts import Attempt, Cancel
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.store import Store


def allocated_shares(store: Store, ended: Collection[int] = ()) -> dict[str, int]:
    """Returns UUID -> thousandths allocated by attempts that still hold the GPU; 0 for a free GPU.

    ended: ids of attempts that have ended but whose end is not recorded yet.
    """
    spike_buffer = recorded_options(store).limits.spike_buffer
    totals = {row["uuid"]: row["total_mib"] for row in store.gpus()}
    shares = dict.fromkeys(totals, 0)
    for attempt in store.db.rows(
        "SELECT id, gpus, share, vram, whole, peaks FROM attempt WHERE settled = 0 AND released_boot IS NULL"
    ):
        if attempt["id"] in ended:
            continue
        for uuid in json.loads(attempt["gpus"]):
            share = allocated_share(Allocation.of_row(attempt, uuid), totals.get(uuid), spike_buffer)
            shares[uuid] = shares.get(uuid, 0) + share
    return shares


def attempt_from_row(
    row: sqlite3.Row, status: AttemptStatus, failure_context: FailureContext | None = None
) -> Attempt:
    """Combines a row of `Store.active_attempts` with the status read from the attempt folder."""
    return Attempt(
        attempt_id=row["id"],
        job_id=row["job_id"],
        token=row["token"],
        boot_id=row["boot_id"],
        job_state=JobState(row["job_state"]),
        number=row["number"],
        gpus=tuple(json.loads(row["gpus"])),
        share=row["share"],
        vram=row["vram"],
        whole=bool(row["whole"]),
        budgets=json.loads(row["budgets"]),
        peaks=json.loads(row["peaks"]),
        measured_at=row["measured_boot"],
        overused_gpus=tuple(json.loads(row["exceeded"])),
        resources=ResourceSpec.from_key(row["job_ask"]),
        oom_retries_used=row["oom_used"],
        fail_retries_used=row["fail_used"],
        baseline_mib=json.loads(row["baseline"]),
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        status=status,
        failure_context=failure_context,
        launch_count=row["launches"],
        launch_deadline=row["deadline_boot"],
        launch_error=row["launch_error"],
        stopping_at=row["stopping_boot"],
        signalled_at=row["signalled_boot"],
        runner_died_at=row["dead_boot"],
        swept_at=row["swept_boot"],
        released_at=row["released_boot"],
        cancel=Cancel(row["cancel_cause"], row["cancel_grace_s"]) if row["cancel_cause"] else None,
        launch_failures=row["launch_failures"],
        source_missing=row["job_source"].startswith("file:") and not row["has_line"],
        misplaced_gpus=tuple(uuid for uuid, _ in json.loads(row["strays"])),
        window_closed_recorded=bool(row["window_closed"]),
        runner=recorded_runner(row),
    )


def recorded_runner(row: sqlite3.Row) -> RunnerIdentity | None:
    """Returns the runner of an attempt that the store has recorded; None if there is none."""
    if row["runner_pid"] is None:
        return None
    return RunnerIdentity(row["runner_pid"], row["runner_ticks"], row["boot_id"])
