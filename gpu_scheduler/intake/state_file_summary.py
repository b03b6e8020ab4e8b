"""Summarizes allocated shares, paused GPUs and the number of jobs in each state, for the state file."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.accounting import allocated_share
from gpu_scheduler.intake.state_file_edits import requested_pauses
from gpu_scheduler.store.job_lists import open_jobs, state_counts
from gpu_scheduler.store.records import ActiveAttemptRecord, GpuRecord
from gpu_scheduler.store.store import Store


def summarize(
    store: Store, ended_attempts: Collection[int] = ()
) -> tuple[list[float], list[int], dict[str, object]]:
    """Returns the allocated shares by GPU index, the paused GPUs and the number of jobs in each state.

    ended_attempts: the ids of attempts that have ended but whose end is not recorded yet. They hold no GPU,
    and their jobs are not counted.
    """
    gpus, active = store.gpus(), store.active_attempts()
    remaining = [attempt for attempt in active if attempt.id not in ended_attempts]
    shares = allocated_shares(gpus, remaining, store.recorded_options().spike_buffer)
    listed = [0.0] * (max((gpu.index for gpu in gpus), default=-1) + 1)
    for gpu in gpus:
        listed[gpu.index] = shares[gpu.uuid] / 1000
    counts = dict(state_counts(store))
    ended = {attempt.job_id for attempt in active if attempt.id in ended_attempts and attempt.outcome is None}
    running = {job.id: job.state for job in open_jobs(store, tuple(ACTIVE))}
    for job_id in ended & running.keys():
        counts[running.pop(job_id)] -= 1
    jobs: dict[str, object] = {
        state: count for state, count in sorted(counts.items()) if count and state != JobState.FINISHED
    }
    jobs["running_ids"] = sorted(running)
    requested = requested_pauses(store)
    return listed, [gpu.index for gpu in gpus if requested[gpu.uuid]], jobs


def allocated_shares(
    gpus: Sequence[GpuRecord], attempts: Sequence[ActiveAttemptRecord], spike_buffer: float
) -> dict[str, int]:
    """Returns the allocated share of each GPU in thousandths, by UUID; 0 for a GPU that no attempt holds."""
    totals = {gpu.uuid: gpu.total_mib for gpu in gpus}
    shares = dict.fromkeys(totals, 0)
    for attempt in attempts:
        if not attempt.state.holds_gpus:
            continue
        for allocation in attempt.allocations:
            share = allocated_share(allocation, totals.get(allocation.gpu), spike_buffer)
            shares[allocation.gpu] = shares.get(allocation.gpu, 0) + share
    return shares
