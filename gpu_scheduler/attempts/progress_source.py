"""Names the places where the progress of an attempt can be read."""

from __future__ import annotations

from gpu_scheduler.attempts.log_tail import current_log, log_of_process
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.progress.job_progress import ProgressSource
from gpu_scheduler.progress.progress_file import PROGRESS_FILE
from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.watched_process import is_alive
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store


def progress_source(store: Store, spec: JobSpec, attempt: AttemptRecord) -> ProgressSource:
    """Returns where to read the progress of an attempt. spec: that of its job."""
    return ProgressSource(
        attempt.id,
        spec,
        current_log(attempt),
        str(store.data_dir.attempt_folder(attempt) / PROGRESS_FILE),
        _since(store, attempt),
        attempt.started_at,
        attempt.resumed_from,
    )


def adopted_source(job: JobRecord) -> ProgressSource | None:
    """Returns where to read the progress of an adopted process that no runner watches; None if it has ended.

    Its key is the negative id of the job.
    """
    one = job.adopted
    if one is None or one.boot_id != boot_id() or not is_alive(one.pid, one.start_ticks):
        return None
    log = log_of_process(one.pid, one.start_ticks, one.log)
    return ProgressSource(-job.id, job.spec, log, None, one.started_at, one.started_at)


def start_of(attempt: AttemptRecord) -> float:
    """Returns when an attempt began, in wall seconds. An adopted process started before its attempt."""
    return min(attempt.created_at, attempt.started_at or attempt.created_at)


def _since(store: Store, attempt: AttemptRecord) -> float:
    """Returns when the first attempt of a job began, in wall seconds; older checkpoints are of other runs.

    Of an attempt that resumed from a checkpoint, only its own count, because the user may have chosen an
    older one on purpose.
    """
    is_first = attempt.number == 1 or attempt.resumed_from is not None
    return start_of(attempt if is_first else store.attempts(attempt.job_id)[0])
