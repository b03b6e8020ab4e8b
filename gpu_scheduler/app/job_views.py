"""Builds the view of a job from its record, its newest attempt and the status of that attempt's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.states import ACTIVE, WAITING, AttemptState, JobState
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason

if TYPE_CHECKING:
    from gpu_scheduler.app.status_report import AttemptWarning
    from gpu_scheduler.core.model.now import Now
    from gpu_scheduler.core.scheduling.facts import Attempt
    from gpu_scheduler.store.records import AttemptRecord, JobRecord


@dataclass(frozen=True)
class ViewContext:
    """Data beside a job's own records on which its view depends.

    wait_reasons: spec key -> why its jobs wait, `default_wait` if it is missing; indices: UUID -> GPU
    index; open_requests: job id -> the action of a pending request; open_attempts: attempt id -> facts of an
    open attempt, from its row and folder; *_retries: defaults for jobs whose line gives none;
    is_scheduler_up: a scheduler watches the jobs file.
    """

    now: Now
    wait_reasons: Mapping[str, WaitReason] = field(default_factory=dict)
    default_wait: WaitKind = WaitKind.NOT_TRIED
    indices: Mapping[str, int] = field(default_factory=dict)
    open_requests: Mapping[int, str] = field(default_factory=dict)
    open_attempts: Mapping[int, Attempt] = field(default_factory=dict)
    oom_retries: int = 0
    fail_retries: int = 0
    is_scheduler_up: bool = True


def job_view(job: JobRecord, attempt: AttemptRecord | None, context: ViewContext) -> JobView:
    """Returns the view of a job as it is now, even if the store does not know its state yet."""
    state = job.state
    wait = _wait_reason(job, attempt, context)
    of_group = context.wait_reasons.get(job.spec_key) if state is JobState.QUEUED else None
    values = JobView(
        id=job.id,
        state=state.value,
        outcome=job.outcome and job.outcome.value,
        reason=job.reason,
        wait=wait,
        due_in_s=_due_in_s(wait, context),
        infeasible=of_group is not None and of_group.is_infeasible,
        name=job.name,
        text=job.text,
        exit_code=job.exit_code,
        signal=job.signal,
        created_at=job.created_at,
        finished_at=job.finished_at,
        priority=job.priority,
        oom_retries_used=job.oom_retries_used,
        source=job.source,
        spec=job.spec_json,
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
        share_declared=share_declared(attempt),
        peaks=peaks_by_index(attempt, context.indices),
    )
    fact = context.open_attempts.get(attempt.id)
    view = values if fact is None else _with_observed_status(values, fact, context)
    return replace(view, wait=_start_delay(attempt)) if view.state == JobState.STARTING.value else view


def _start_delay(attempt: AttemptRecord) -> WaitReason | None:
    """Returns why an attempt that holds its GPUs has no runner yet; None while the delay is normal."""
    launches = attempt.launch_count
    if launches == 0:
        return WaitReason(WaitKind.SHORTAGE)
    return WaitReason(WaitKind.RELAUNCHED, launches=launches) if launches > 1 else None


def warnings(attempt: AttemptRecord, indices: Mapping[str, int]) -> tuple[AttemptWarning, ...]:
    """Returns the warnings about an attempt: memory use above its declaration, and processes on GPUs that
    were not allocated to it."""
    if not (attempt.overused_gpus or attempt.misplaced):
        return ()
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse

    share = attempt.share if attempt.vram is None else None
    peaks, budgets = attempt.peaks, attempt.budgets
    overuses = (
        Overuse(attempt.number, indices.get(uuid, -1), peaks.get(uuid) or 0, budgets.get(uuid) or 0, share)
        for uuid in attempt.overused_gpus
    )
    allocated = gpu_indices(attempt, indices)
    misplaced = (
        MisplacedProcess(attempt.number, indices.get(uuid, -1), pid, allocated)
        for uuid, pid in attempt.misplaced
    )
    return (*overuses, *misplaced)


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
    """Returns whether the delay after a failed launch is over, so that the job waits only for GPUs."""
    at = job.not_before_boot
    due = at is not None and (at <= context.now.boot or job.boot_id != context.now.boot_id)
    return due and job.state is JobState.QUEUED


def _wait_reason(job: JobRecord, attempt: AttemptRecord | None, context: ViewContext) -> WaitReason | None:
    """Returns why a job waits; None if it neither waits nor has a pending request."""
    request = context.open_requests.get(job.id)
    if request is not None:
        return WaitReason(WaitKind.REQUEST, request)
    if job.state not in WAITING:
        return None
    if job.state is JobState.HELD:
        return WaitReason(WaitKind.HELD, job.held_by or "")
    if job.reason and not _retry_is_due(job, context):
        return WaitReason(WaitKind.RETRY_DELAY, due_at=job.not_before_boot)
    if job.line_wait is not None:
        return job.line_wait
    if attempt is not None and attempt.state is AttemptState.ENDED:
        return WaitReason(WaitKind.PROCESSES_LEFT)
    return context.wait_reasons.get(job.spec_key) or WaitReason(context.default_wait)


def _due_in_s(wait: WaitReason | None, context: ViewContext) -> float | None:
    """Returns the seconds until the reason may end; None if unknown, or if no scheduler runs to act then."""
    if wait is None or wait.due_at is None or not context.is_scheduler_up:
        return None
    return wait.due_at - context.now.boot


def _with_observed_status(values: JobView, attempt: Attempt, context: ViewContext) -> JobView:
    """Returns the view with the changes that the next round would record of an open attempt."""
    status = attempt.status
    closed = values.window_closed or status.window_open is False
    session = None if closed else status.session or values.session
    values = replace(values, session=session, window_closed=closed, log=values.log or status.log)
    if status.claim != "none":
        values = replace(values, warnings=(*values.warnings, *status.anomalies))
    if runs_as_recorded(attempt):
        return values
    from gpu_scheduler.core.scheduling.actions import FinishAttempt, Transition
    from gpu_scheduler.core.scheduling.reconcile import has_unknown_runner, reconcile
    from gpu_scheduler.core.scheduling.settings import Settings

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
                wait=None,
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


def runs_as_recorded(attempt: Attempt) -> bool:
    """Returns whether an attempt simply runs on, so that `reconcile` changes no state.

    This spares most commands the import of the rules, which takes longer than all else that `status` does.
    """
    status = attempt.status
    stops = status.stop is not None or attempt.cancel is not None
    return (
        attempt.state is AttemptState.RUNNING
        and status.claim == "live"
        and status.result is None
        and not stops
    )
