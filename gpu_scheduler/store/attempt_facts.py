"""Combines the row of an attempt with its status into the core's `Attempt`; nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.model.attempt_status import AttemptStatus, FailureContext
from gpu_scheduler.core.scheduling.accounting import allocated_share
from gpu_scheduler.core.scheduling.facts import Attempt, Cancel
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.records import ActiveAttemptRecord, GpuRecord


def allocated_shares(
    gpus: Sequence[GpuRecord], attempts: Sequence[ActiveAttemptRecord], spike_buffer: float
) -> dict[str, int]:
    """Returns UUID -> thousandths allocated by those of the attempts that hold the GPU; 0 for a free GPU."""
    totals = {gpu.uuid: gpu.total_mib for gpu in gpus}
    shares = dict.fromkeys(totals, 0)
    for attempt in attempts:
        if not attempt.state.holds_gpus:
            continue
        for allocation in attempt.allocations:
            share = allocated_share(allocation, totals.get(allocation.gpu), spike_buffer)
            shares[allocation.gpu] = shares.get(allocation.gpu, 0) + share
    return shares


def attempt_from_record(
    record: ActiveAttemptRecord, status: AttemptStatus, failure_context: FailureContext | None = None
) -> Attempt:
    """Combines the row of an attempt with the status read from its folder."""
    return Attempt(
        attempt_id=record.id,
        job_id=record.job_id,
        token=record.token,
        boot_id=record.boot_id,
        state=record.state,
        executor=record.executor,
        number=record.number,
        gpus=record.gpus,
        share=record.share,
        vram=record.vram,
        whole=record.whole,
        budgets=record.budgets,
        peaks=record.peaks,
        measured_at=record.measured_boot,
        overused_gpus=record.overused_gpus,
        resources=ResourceSpec.from_key(record.spec_key),
        oom_retries_used=record.oom_retries_used,
        fail_retries_used=record.fail_retries_used,
        baseline_mib=record.baseline_mib,
        status=status,
        failure_context=failure_context,
        launch_count=record.launch_count,
        launch_deadline=record.launch_deadline_boot,
        launch_error=record.launch_error,
        stopping_at=record.stopping_boot,
        signalled_at=record.signalled_boot,
        runner_died_at=record.runner_died_boot,
        swept_at=record.swept_boot,
        released_at=record.released_boot,
        cancel=_pending_cancel(record),
        launch_failures=record.launch_failures,
        source_missing=record.source_missing,
        misplaced_gpus=tuple(gpu for gpu, _ in record.misplaced),
        window_closed_recorded=record.window_closed,
        runner=record.runner,
    )


def _pending_cancel(record: ActiveAttemptRecord) -> Cancel | None:
    if record.cancel_cause is None or record.cancel_grace_s is None:
        return None
    return Cancel(record.cancel_cause, record.cancel_grace_s)
