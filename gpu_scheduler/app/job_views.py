"""Builds the view of a job from its record, its newest attempt and the status of that attempt's folder."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.share import share_text
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState

if TYPE_CHECKING:
    from gpu_scheduler.core.model.line_wait import LineWait
    from gpu_scheduler.core.model.now import Now
    from gpu_scheduler.core.scheduling.facts import Attempt
    from gpu_scheduler.store.records import AttemptRecord, JobRecord

AWAITING_PROCESSES = "waiting for processes of its last attempt to end"


@dataclass(frozen=True)
class ViewContext:
    """Data beside a job's own records on which its view depends.

    wait_reasons: spec key -> why its jobs wait, `default_wait_reason` if it is missing; needs: spec key ->
    the fields of the Need that its jobs wait for; infeasible: spec keys that can never fit; indices: UUID ->
    GPU index; open_requests: job id -> what a pending request asks for; open_attempts: attempt id -> facts of
    an open attempt, from its row and folder; *_retries: defaults for jobs whose line gives none;
    is_scheduler_up: a scheduler watches the jobs file.
    """

    now: Now
    wait_reasons: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default_wait_reason: str = "not tried yet"
    infeasible: Collection[str] = ()
    indices: Mapping[str, int] = field(default_factory=dict)
    open_requests: Mapping[int, str] = field(default_factory=dict)
    open_attempts: Mapping[int, Attempt] = field(default_factory=dict)
    oom_retries: int = 0
    fail_retries: int = 0
    is_scheduler_up: bool = True


def job_view(job: JobRecord, attempt: AttemptRecord | None, context: ViewContext) -> JobView:
    """Returns the view of a job as it is now, even if the store does not know its state yet."""
    state = job.state
    reason = _reason(job, attempt, context)
    # Known only if the job waits for nothing but GPUs.
    need = context.needs.get(job.spec_key) if reason == context.wait_reasons.get(job.spec_key) else None
    values = JobView(
        id=job.id,
        state=state.value,
        outcome=job.outcome and job.outcome.value,
        reason=reason,
        infeasible=state is JobState.QUEUED and job.spec_key in context.infeasible,
        name=job.name,
        text=job.text,
        exit_code=job.exit_code,
        signal=job.signal,
        created_at=job.created_at,
        finished_at=job.finished_at,
        priority=job.priority,
        source=job.source,
        spec=job.spec_json,
        need=need if state is JobState.QUEUED else None,
        line_wait=job.line_wait if state is JobState.QUEUED else None,
    )
    if attempt is None:
        return values
    closed = state in ACTIVE and attempt.window_closed
    values = replace(
        values,
        gpus=gpu_indices(attempt, context.indices),
        attempts=attempt.number,
        session=None if closed else attempt.session if state in ACTIVE else None,
        window_closed=closed,
        log=attempt.log,
        started_at=attempt.started_at,
        warnings=warnings(attempt, context.indices),
        vram_declared=vram_declared(attempt),
        peaks=peaks_by_index(attempt, context.indices),
    )
    fact = context.open_attempts.get(attempt.id)
    view = values if fact is None else _with_observed_status(values, fact, context)
    return (
        replace(view, reason=_start_delay_reason(attempt)) if view.state == JobState.STARTING.value else view
    )


def _start_delay_reason(attempt: AttemptRecord) -> str | None:
    """Returns why an attempt that holds its GPUs has no runner yet; None while the delay is normal."""
    if attempt.launch_count == 0:
        return "not started yet: short of processes, memory, file descriptors or disk space; retrying"
    return f"launched {attempt.launch_count} times, not started yet" if attempt.launch_count > 1 else None


def warnings(attempt: AttemptRecord, indices: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the warnings about an attempt: memory use above its declaration, and processes on GPUs that
    were not allocated to it."""
    texts = [_overuse_warning(attempt, uuid, indices) for uuid in attempt.overused_gpus]
    if attempt.misplaced:
        from gpu_scheduler.core.scheduling.misplaced import misplaced_process_message

        allocated = gpu_indices(attempt, indices)
        job = f"job {attempt.job_id}"
        texts += [
            f"{job} {misplaced_process_message(allocated, indices.get(uuid, -1), pid)}"
            for uuid, pid in attempt.misplaced
        ]
    return tuple(texts)


def _overuse_warning(attempt: AttemptRecord, uuid: str, indices: Mapping[str, int]) -> str:
    peak, mib = attempt.peaks.get(uuid), attempt.budgets.get(uuid)
    declared = f"{mib} MiB" if attempt.vram is not None else share_text(attempt.share, mib)
    where = f"GPU {indices.get(uuid, -1)}"
    runs = attempt.outcome is None
    return (
        f"job {attempt.job_id} declared {declared} but used {peak} MiB on {where}"
        f"{': its neighbors may run out of memory' if runs else ''}"
    )


def vram_declared(attempt: AttemptRecord) -> int | None:
    """Returns the declared MiB on each GPU; None if the attempt declared a share, or nothing."""
    return attempt.vram if attempt.budgets else None


def share_declared(attempt: AttemptRecord) -> int | None:
    """Returns the declared thousandths of each GPU; None if the attempt declared memory only, or nothing."""
    return (attempt.share or None) if attempt.budgets else None


def peaks_by_index(attempt: AttemptRecord, indices: Mapping[str, int]) -> dict[int, int]:
    """Returns the peak memory use of an attempt in MiB, by GPU index."""
    return {indices.get(uuid, -1): mib for uuid, mib in sorted(attempt.peaks.items())}


def gpu_indices(attempt: AttemptRecord, indices: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the indices of the GPUs of an attempt."""
    return tuple(sorted(indices.get(uuid, -1) for uuid in attempt.gpus))


def _retry_is_due(job: JobRecord, context: ViewContext) -> bool:
    """Returns whether the delay after a failed launch is over, so that the job waits for GPUs alone."""
    at = job.not_before_boot
    due = at is not None and (at <= context.now.boot or job.boot_id != context.now.boot_id)
    return due and job.state is JobState.QUEUED


def _reason(job: JobRecord, attempt: AttemptRecord | None, context: ViewContext) -> str | None:
    state = job.state
    request = context.open_requests.get(job.id)
    if request is not None:
        return f"{request} requested; waiting for the scheduler"
    if (job.reason and not _retry_is_due(job, context)) or state not in WAITING:
        return job.reason or None
    if state is JobState.HELD:
        return "held"
    if job.line_wait is not None:
        return line_wait_text(
            job.line_wait, job.source, context.now.boot if context.is_scheduler_up else None
        )
    if attempt is not None and attempt.outcome is not None and not _released(attempt):
        return AWAITING_PROCESSES
    return context.wait_reasons.get(job.spec_key, context.default_wait_reason)


def line_wait_text(wait: LineWait, source: str, now: float | None) -> str:
    """Describes why a job waits for its line. source: of the job; now: boot seconds, None = no scheduler."""
    file = posixpath.basename(source.partition(":")[2]) or "its jobs file"
    left = None if now is None or wait.due_at is None or now >= wait.due_at else math.ceil(wait.due_at - now)
    if wait.kind == "malformed":
        return f"line {wait.line_number} of {file} is malformed; waiting until it is corrected"
    if wait.kind == "gone":
        when = "cancelled" if left is None else f"cancelled in {left} s"
        return f"line removed from {file}; {when} unless it is restored"
    when = "and has not been read yet" if left is None else f"and takes effect in {left} s"
    return f"line {wait.line_number} of {file} was changed {when}"


def _released(attempt: AttemptRecord) -> bool:
    return attempt.memory_released or attempt.released_boot is not None


def _with_observed_status(values: JobView, attempt: Attempt, context: ViewContext) -> JobView:
    """Returns the view with the changes that the next round would record of an open attempt."""
    from gpu_scheduler.core.scheduling.actions import FinishAttempt, Transition
    from gpu_scheduler.core.scheduling.reconcile import has_unknown_runner, reconcile
    from gpu_scheduler.core.scheduling.settings import Settings

    status = attempt.status
    closed = values.window_closed or status.window_open is False
    session = None if closed else status.session or values.session
    values = replace(values, session=session, window_closed=closed, log=values.log or status.log)
    if status.claim != "none":
        anomalies = tuple(f"job {attempt.job_id}: {text}" for text in status.anomalies)
        values = replace(values, warnings=(*values.warnings, *anomalies))
    settings = Settings(oom_retries=context.oom_retries, fail_retries=context.fail_retries)
    # Front ends do not scan processes, on which the outcome of an attempt without a known runner depends.
    survivors = None if has_unknown_runner(attempt) else ()
    for action in reconcile(replace(attempt, survivors=survivors), context.now, settings):
        if isinstance(action, FinishAttempt):
            finished = action.state is JobState.FINISHED
            return replace(
                values,
                state=action.state.value,
                outcome=action.job_outcome.value if action.job_outcome else None,
                reason=action.reason,
                exit_code=action.exit_code,
                signal=action.signal,
                started_at=action.started_at or values.started_at,
                finished_at=action.ended_at if finished else None,
                session=None,
                window_closed=False,
                is_recorded=False,
            )
        if isinstance(action, Transition):
            return replace(values, state=action.state.value, is_recorded=False)
    return values
