"""Collects the context of a failed command: the end of its log, and the GPU ids that it was given."""

from __future__ import annotations

from gpu_scheduler.attempts.job_logs import read_tail
from gpu_scheduler.core.command.build import display_command
from gpu_scheduler.core.command.cuda import format_ids
from gpu_scheduler.core.model.attempt_status import AttemptStatus, FailureContext
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.store.store import Store

_GPU_IDS_PLACEHOLDER = "THE-GPU-IDS"


def failure_context_of(store: Store, attempt: AttemptRecord, status: AttemptStatus) -> FailureContext:
    """Returns the failure context of an attempt whose result reports a failure."""
    job = store.job(attempt.job_id)
    assert job is not None
    spec = job.spec
    return FailureContext(
        read_tail(attempt.log or status.log),
        _misleading_gpu_ids(store, attempt, spec),
        spec.oom_retries,
        spec.fail_retries,
        pipe_programs=spec.pipe_programs,
    )


def _misleading_gpu_ids(store: Store, attempt: AttemptRecord, spec: JobSpec) -> tuple[int, ...]:
    """Returns the physical GPU ids in the command's arguments, if the command sees its GPUs under other ids.

    Returns an empty tuple if the ids agree or if the command has none in its arguments.
    """
    index = store.gpu_indices()
    gpus = tuple(index[uuid] for uuid in attempt.gpus if uuid in index)
    mode = spec.cuda_ids or store.recorded_options().cuda_ids
    same = format_ids(gpus, mode) == format_ids(gpus, "visible")
    return () if same or _GPU_IDS_PLACEHOLDER not in display_command(spec, _GPU_IDS_PLACEHOLDER) else gpus
