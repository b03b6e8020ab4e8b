"""Builders of the store's records, with defaults for all that a test does not name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.store.records import AllocationRecord, AttemptRecord, GpuRecord, JobRecord


def job_record(**values: Any) -> JobRecord:
    """Returns queued job 3 of a jobs file, whose resource spec has the key ASK. state, outcome: as text."""
    fields: dict[str, Any] = {
        "id": 3, "source": "file:/home/me/jobs.txt", "identity": "i", "name": None,
        "text": "echo hello", "spec_json": "{}", "spec_key": "ASK", "priority": 200, "position": 1,
        "state": "queued", "outcome": None, "exit_code": None, "signal": None, "reason": None,
        "held_by": None, "cancel_cause": None, "launch_failures": 0,
        "not_before_boot": None, "boot_id": None, "line_wait": None,
        "min_vram_mib": None, "oom_retries_used": 0, "fail_retries_used": 0,
        "created_at": 900.0, "finished_at": None, **values,
    }  # fmt: skip
    outcome = fields["outcome"]
    return JobRecord(
        **{**fields, "state": JobState(fields["state"]), "outcome": outcome and Outcome(outcome)}
    )


def attempt_record(
    gpus: Sequence[str] = ("B", "A"),
    *,
    share: int = 0,
    vram: int | None = None,
    whole: bool = False,
    budgets: Mapping[str, int] | None = None,
    peaks: Mapping[str, int] | None = None,
    overused: Collection[str] = (),
    **values: Any,
) -> AttemptRecord:
    """Returns the open first attempt (11) of job 3. budgets: declared MiB by GPU, None = nothing declared;
    outcome: as text."""
    budgets, peaks = budgets or {}, peaks or {}
    allocations = tuple(
        AllocationRecord(
            share, vram, whole, peaks.get(gpu), gpu, budgets.get(gpu), overuse_logged=gpu in overused
        )
        for gpu in gpus
    )
    fields: dict[str, Any] = {
        "id": 11, "job_id": 3, "number": 1, "token": "t", "boot_id": "boot", "state": _attempt_state(values),
        "executor": "direct", "allocations": allocations,
        "learned": False, "assumed": not budgets, "launch_count": 1, "launch_deadline_boot": 600.0,
        "launch_error": None, "runner_pid": None, "runner_start_ticks": None,
        "stopping_boot": None, "signalled_boot": None,
        "swept_boot": None, "runner_died_boot": None, "released_boot": None,
        "measured_boot": None, "misplaced": (), "outcome": None, "exit_code": None, "signal": None,
        "reason": None, "survivors": (), "log": "/logs/3.log", "session": "gpujob_0_echo_3",
        "window_closed": False, "created_at": 940.0, "started_at": 950.0, "ended_at": None, **values,
    }  # fmt: skip
    return AttemptRecord(**{**fields, "outcome": fields["outcome"] and Outcome(fields["outcome"])})


def _attempt_state(values: Mapping[str, Any]) -> AttemptState:
    if values.get("released_boot") is not None:
        return AttemptState.RELEASED
    return AttemptState.ENDED if values.get("outcome") else AttemptState.RUNNING


def gpu_record(**values: Any) -> GpuRecord:
    """Returns GPU A with index 0, 1000 MiB and hardly any use."""
    fields: dict[str, Any] = {
        "uuid": "A", "index": 0, "name": "H200", "total_mib": 1000, "paused": False,
        "used_mib": 10, "load_percent": 0.0, "fault": None, "sampled_at": 5.0, "processes": None,
        "loads": (), "foreign_peaks": (), "foreign_loads": (), "foreign_load_boot": None, **values,
    }  # fmt: skip
    return GpuRecord(**fields)
