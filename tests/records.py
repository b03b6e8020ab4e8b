"""Builds records of the store, with a default for every value that a test does not give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpu_scheduler.core.model.gpu import Gpu, GpuSample
from gpu_scheduler.core.model.job import Allocation, Attempt, Job
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.show.job_views import GpuView, JobView


def job_record(**values: Any) -> Job:
    """Returns job 3, which is queued and has the resource spec ASK. state, outcome: given as text."""
    fields: dict[str, Any] = {
        "id": 3, "source": "file:/home/me/jobs.txt", "identity": "i", "text": "echo hello", "spec_key": "ASK",
        "priority": 200, "position": 1, "queued_at": 900.0, "submitted_at": 900.0, "created_at": 900.0,
        **values,
    }  # fmt: skip
    state, outcome = fields.pop("state", "queued"), fields.pop("outcome", None)
    return Job(state=JobState(state), outcome=outcome and Outcome(outcome), **fields)


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
) -> Attempt:
    """Returns attempt 11, which is open and the first attempt of job 3.

    budgets: declared MiB by GPU (None = nothing declared); outcome: given as text.
    """
    budgets, peaks = budgets or {}, peaks or {}
    allocations = tuple(
        Allocation(share, vram, whole, peaks.get(gpu), gpu, budgets.get(gpu), overuse_logged=gpu in overused)
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
        "window_closed": False, "created_at": 940.0, "started_at": 950.0, "ended_at": None,
        "resumed_from": None, "watched_pid": None, "watched_ticks": None, "preempted_for": None,
        "follows_preemption": False,
        "queue_priority": 200, "queue_position": 1, "submitted_at": None, **values,
    }  # fmt: skip
    return Attempt(**{**fields, "outcome": fields["outcome"] and Outcome(fields["outcome"])})


def _attempt_state(values: Mapping[str, Any]) -> AttemptState:
    if values.get("released_boot") is not None:
        return AttemptState.RELEASED
    return AttemptState.ENDED if values.get("outcome") else AttemptState.RUNNING


def gpu_record(**values: Any) -> Gpu:
    """Returns GPU A, which has index 0 and uses 10 of 1000 MiB. Values of its sample may be given, too."""
    of_sample: dict[str, Any] = {
        "uuid": "A", "index": 0, "name": "H200", "total_mib": 1000, "used_mib": 10, "load_percent": 0.0,
    }  # fmt: skip
    of_sample |= {name: values.pop(name) for name in GpuSample.__struct_fields__ if name in values}
    sample = GpuSample(**of_sample)
    fields: dict[str, Any] = {"total_mib": sample.total_mib, "sampled_at": 5.0, **values}
    return Gpu(sample.uuid, sample.index, sample=sample, **fields)


#: Values of a job view that belong to the job's newest attempt, and those that belong to the view itself.
_OF_ATTEMPT = ("session", "log", "started_at", "window_closed")
_OF_VIEW = (
    "is_recorded", "infeasible", "parents", "gpus", "warnings", "memory_used", "peaks", "wait", "due_in_s",
    "last_line", "progress",
)  # fmt: skip


def job_view(number: int = 3, state: str = "queued", outcome: str | None = None, **values: Any) -> JobView:
    """Returns the view of a job.

    The job has an attempt only if vram_declared, share_declared, attempts (the attempt's number) or one of
    the values in _OF_ATTEMPT is given.
    """
    vram, share = values.pop("vram_declared", None), values.pop("share_declared", None)
    of_attempt = {name: values.pop(name) for name in _OF_ATTEMPT if name in values}
    if "attempts" in values:
        of_attempt["number"] = values.pop("attempts")
    attempt = None
    if of_attempt or vram is not None or share is not None:
        has_budget = vram is not None or share is not None
        attempt = attempt_record(
            ["A"], share=share or 0, vram=vram, budgets={"A": vram or 0} if has_budget else None,
            **{"job_id": number, "session": None, "log": None, "started_at": None, **of_attempt},
        )  # fmt: skip
    of_view = {name: values.pop(name) for name in _OF_VIEW if name in values}
    record = job_record(
        **{
            "source": "",
            "text": "",
            "created_at": 0.0,
            "id": number,
            "state": state,
            "outcome": outcome,
            **values,
        }
    )
    return JobView(record, attempt, **of_view)


def gpu_view(state: str = "available", share: int = 0, **values: Any) -> GpuView:
    """Returns the view of a GPU. Values that the view does not have go into its record."""
    names = ("jobs", "allocated_mib", "has_declared_memory", "claims", "claims_problem")
    of_view = {name: values.pop(name) for name in names if name in values}
    return GpuView(gpu_record(**values), state, share, **of_view)
