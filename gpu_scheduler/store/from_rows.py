"""Builds records from rows of the database. Nothing else knows the columns that queries return."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.model.attempt_status import RunnerIdentity
from gpu_scheduler.core.model.gpu import GpuProcess
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.store.records import (
    ActiveAttemptRecord,
    AllocationRecord,
    AttemptRecord,
    GpuRecord,
    JobRecord,
)

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu_fault import GpuFault

#: The columns of an attempt, with its allocations and misplaced processes as JSON lists, in one query.
ATTEMPT_COLUMNS = """
    attempt.*,
    (SELECT json_group_array(json_array(gpu, share, vram, whole, peak_mib, budget_mib, baseline_mib, load_sum,
                                        load_samples, overuse_logged))
     FROM (SELECT * FROM allocation WHERE attempt_id = attempt.id ORDER BY ordinal)) AS allocations,
    (SELECT json_group_array(json_array(gpu, pid)) FROM misplaced_process
     WHERE attempt_id = attempt.id) AS misplaced
"""


_STATES = {state.value: state for state in JobState}


def job_records(rows: Sequence[sqlite3.Row]) -> list[JobRecord]:
    """Builds jobs from rows of `job`, whose columns are the fields of the record."""
    names = rows[0].keys() if rows else []
    return [_job_record(row, names) for row in rows]


def _job_record(row: sqlite3.Row, names: Sequence[str]) -> JobRecord:
    """Builds a job without its constructor, which takes several times as long; a list may have thousands."""
    values = dict(zip(names, row))  # noqa: B905 - of equal length, and without a check faster
    values["spec_json"] = values.pop("spec")
    values["state"] = _STATES[values["state"]]
    values["source_missing"] = bool(values["source_missing"])
    if values["outcome"] is not None:
        values["outcome"] = Outcome(values["outcome"])
    values["reason"] = state_reason(values["reason"])
    values["line_wait"] = wait_reason(values["line_wait"])
    record = object.__new__(JobRecord)
    record.__dict__.update(values)
    return record


def attempt_record(row: sqlite3.Row) -> AttemptRecord:
    """Builds an attempt from a row with ATTEMPT_COLUMNS."""
    return AttemptRecord(**_attempt_values(row))


def active_attempt_record(row: sqlite3.Row) -> ActiveAttemptRecord:
    """Builds an attempt from a row with ATTEMPT_COLUMNS that is joined with its job."""
    return ActiveAttemptRecord(
        **_attempt_values(row),
        cancel_cause=row["cancel_cause"],
        cancel_grace_s=row["cancel_grace_s"],
        launch_failures=row["launch_failures"],
        spec_key=row["spec_key"],
        oom_retries_used=row["oom_retries_used"],
        fail_retries_used=row["fail_retries_used"],
        source_missing=row["job_source"].startswith("file:") and not row["has_line"],
    )


def _attempt_values(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "job_id": row["job_id"],
        "number": row["number"],
        "token": row["token"],
        "boot_id": row["boot_id"],
        "state": AttemptState(row["state"]),
        "executor": row["executor"],
        "allocations": _allocations(row["allocations"]),
        "learned": bool(row["learned"]),
        "assumed": bool(row["assumed"]),
        "launch_count": row["launch_count"],
        "launch_deadline_boot": row["launch_deadline_boot"],
        "launch_error": row["launch_error"],
        "runner": _runner(row),
        "stopping_boot": row["stopping_boot"],
        "signalled_boot": row["signalled_boot"],
        "swept_boot": row["swept_boot"],
        "runner_died_boot": row["runner_died_boot"],
        "released_boot": row["released_boot"],
        "measured_boot": row["measured_boot"],
        "misplaced": tuple((gpu, pid) for gpu, pid in json.loads(row["misplaced"])),
        "outcome": _outcome(row["outcome"]),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "reason": state_reason(row["reason"]),
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
    return RunnerIdentity(row["runner_pid"], row["runner_start_ticks"], row["boot_id"])


def _allocations(listed: str) -> tuple[AllocationRecord, ...]:
    return tuple(
        AllocationRecord(
            share, vram, bool(whole), peak, gpu, budget, baseline, load_sum, samples, bool(logged)
        )
        for gpu, share, vram, whole, peak, budget, baseline, load_sum, samples, logged in json.loads(listed)
    )


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
        fault=_fault(row["fault"]),
        sampled_at=row["sampled_at"],
        processes=_processes(row["processes"]),
        loads=tuple(json.loads(row["loads"])),
        foreign_peaks=tuple((pid, start, mib) for pid, start, mib in json.loads(row["foreign_peaks"])),
        foreign_loads=tuple(json.loads(row["foreign_loads"])),
        foreign_load_boot=row["foreign_load_boot"],
    )


def _processes(listed: str | None) -> tuple[GpuProcess, ...] | None:
    if listed is None:
        return None
    return tuple(
        GpuProcess(pid, used_mib, bool(graphics_only)) for pid, used_mib, graphics_only in json.loads(listed)
    )


def _outcome(value: str | None) -> Outcome | None:
    return None if value is None else Outcome(value)


def wait_reason(text: str | None) -> WaitReason | None:
    """Returns a stored wait reason; None if there is none."""
    return None if text is None else WaitReason.from_json(text)


def state_reason(text: str | None) -> StateReason | None:
    """Returns the stored reason for a state; None if there is none."""
    return None if text is None else StateReason.from_json(text)


def _fault(text: str | None) -> GpuFault | None:
    if text is None:
        return None
    from gpu_scheduler.core.model.gpu_fault import GpuFault

    return GpuFault.from_json(text)
