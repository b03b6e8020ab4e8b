"""Builds records from rows of the database. Nothing else knows the columns that queries return."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from gpu_scheduler.core.model.attempt_status import RunnerIdentity
from gpu_scheduler.core.model.gpu import GpuProcess
from gpu_scheduler.core.model.gpu_fault import GpuFault
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.store.records import (
    ActiveAttemptRecord,
    AllocationRecord,
    AttemptRecord,
    GpuRecord,
    JobRecord,
)


def job_record(row: sqlite3.Row) -> JobRecord:
    """Builds a job from a row of `job`."""
    return JobRecord(
        id=row["id"],
        source=row["source"],
        kind=row["kind"],
        identity=row["identity"],
        name=row["name"],
        text=row["text"],
        spec_json=row["spec"],
        spec_key=row["ask"],
        priority=row["priority"],
        position=row["place"],
        state=JobState(row["state"]),
        outcome=_outcome(row["outcome"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        reason=_reason(row),
        held_by=row["held_by"],
        cancel_cause=row["cancel_cause"],
        cancel_grace_s=row["cancel_grace_s"],
        launch_failures=row["launch_failures"],
        not_before_boot=row["not_before_boot"],
        boot_id=row["boot_id"],
        source_missing=bool(row["gone"]),
        line_wait=None if row["line_wait"] is None else WaitReason.from_json(row["line_wait"]),
        bypassed_at=row["passed_at"],
        min_vram_mib=row["raised_mib"],
        oom_retries_used=row["oom_used"],
        fail_retries_used=row["fail_used"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


def attempt_record(row: sqlite3.Row) -> AttemptRecord:
    """Builds an attempt from a row of `attempt`."""
    return AttemptRecord(**_attempt_values(row))


def active_attempt_record(row: sqlite3.Row) -> ActiveAttemptRecord:
    """Builds an attempt from a row of `attempt` that is joined with its job."""
    return ActiveAttemptRecord(
        **_attempt_values(row),
        job_state=JobState(row["job_state"]),
        cancel_cause=row["cancel_cause"],
        cancel_grace_s=row["cancel_grace_s"],
        launch_failures=row["launch_failures"],
        spec_key=row["job_ask"],
        oom_retries_used=row["oom_used"],
        fail_retries_used=row["fail_used"],
        source_missing=row["job_source"].startswith("file:") and not row["has_line"],
    )


def _attempt_values(row: sqlite3.Row) -> dict[str, Any]:
    budgets = json.loads(row["budgets"])
    return {
        "id": row["id"],
        "job_id": row["job_id"],
        "number": row["number"],
        "token": row["token"],
        "boot_id": row["boot_id"],
        "allocations": _allocations(row, budgets),
        "learned": bool(row["learned"]),
        "assumed": not budgets and bool(row["share"] or row["vram"]),
        "launch_count": row["launches"],
        "launch_deadline_boot": row["deadline_boot"],
        "launch_error": row["launch_error"],
        "runner": _runner(row),
        "stopping_boot": row["stopping_boot"],
        "signalled_boot": row["signalled_boot"],
        "swept_boot": row["swept_boot"],
        "runner_died_boot": row["dead_boot"],
        "released_boot": row["released_boot"],
        "memory_released": bool(row["settled"]),
        "measured_boot": row["measured_boot"],
        "misplaced": tuple((uuid, pid) for uuid, pid in json.loads(row["strays"])),
        "outcome": _outcome(row["outcome"]),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "reason": _reason(row),
        "survivors": tuple(json.loads(row["survivors"])),
        "log": row["log"],
        "session": row["session"],
        "window_closed": bool(row["window_closed"]),
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
    }


def _runner(row: sqlite3.Row) -> RunnerIdentity | None:
    if row["runner_pid"] is None:
        return None
    return RunnerIdentity(row["runner_pid"], row["runner_ticks"], row["boot_id"])


def _allocations(row: sqlite3.Row, budgets: dict[str, int | None]) -> tuple[AllocationRecord, ...]:
    baseline, peaks, loads = (json.loads(row[name]) for name in ("baseline", "peaks", "loads"))
    overused = json.loads(row["exceeded"])
    found = []
    for uuid in json.loads(row["gpus"]):
        load_sum, load_samples = loads.get(uuid, (0.0, 0))
        found.append(
            AllocationRecord(
                row["share"], row["vram"], bool(row["whole"]), peaks.get(uuid), uuid, budgets.get(uuid),
                baseline.get(uuid), load_sum, load_samples, uuid in overused,
            )
        )  # fmt: skip
    return tuple(found)


def gpu_record(row: sqlite3.Row) -> GpuRecord:
    """Builds a GPU from a row of `gpu`."""
    return GpuRecord(
        uuid=row["uuid"],
        index=row["idx"],
        name=row["name"],
        total_mib=row["total_mib"],
        managed=bool(row["managed"]),
        paused=bool(row["paused"]),
        used_mib=row["used_mib"],
        load_percent=row["load_percent"],
        fault=None if row["fault"] is None else GpuFault.from_json(row["fault"]),
        sampled_at=row["sampled_at"],
        processes=_processes(row["processes"]),
        loads=tuple(json.loads(row["loads"])),
        foreign_peaks=tuple((pid, start, mib) for pid, start, mib in json.loads(row["held"])),
        foreign_loads=tuple(json.loads(row["foreign_loads"])),
        foreign_load_boot=row["foreign_load_at"],
    )


def _processes(listed: str | None) -> tuple[GpuProcess, ...] | None:
    if listed is None:
        return None
    return tuple(
        GpuProcess(pid, used_mib, bool(graphics_only)) for pid, used_mib, graphics_only in json.loads(listed)
    )


def _outcome(value: str | None) -> Outcome | None:
    return None if value is None else Outcome(value)


def _reason(row: sqlite3.Row) -> StateReason | None:
    return None if row["reason"] is None else StateReason.from_json(row["reason"])
