"""Formats the warnings about an attempt that uses more memory than declared, or a GPU that is not its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.core.model.units import share_text

if TYPE_CHECKING:
    from gpu_scheduler.app.job_detail import AttemptView
    from gpu_scheduler.app.status_report import AttemptWarning, JobView
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse


def job_warnings(job: JobView) -> list[str]:
    """Returns the warnings about a job and its newest attempt."""
    is_open = job.record.state in ACTIVE
    return [_warning_text(job.record.id, one, is_open=is_open) for one in job.warnings]


def attempt_warnings(view: AttemptView) -> list[str]:
    """Returns the warnings about an attempt."""
    is_open = view.attempt.outcome is None
    return [_warning_text(view.attempt.job_id, one, is_open=is_open) for one in view.warnings]


def _warning_text(job_id: int, warning: AttemptWarning, *, is_open: bool) -> str:
    # This import is here to keep commands fast when there is no warning.
    from gpu_scheduler.core.model.event import MisplacedProcess

    if isinstance(warning, str):
        return f"job {job_id}: {warning}"
    if isinstance(warning, MisplacedProcess):
        return f"job {job_id} {misplaced_process_text(warning)}"
    effect = ": its neighbors may run out of memory" if is_open else ""
    return f"job {job_id} {_overuse_text(warning)}{effect}"


def _overuse_text(overuse: Overuse) -> str:
    mib = overuse.declared
    declared = f"{mib} MiB" if overuse.share is None else share_text(overuse.share, mib)
    return f"declared {declared} but used {overuse.observed} MiB on GPU {overuse.gpu}"


def misplaced_process_text(found: MisplacedProcess) -> str:
    """Formats the warning about a misplaced process, as text that follows the job's name."""
    own = f"GPU{'' if len(found.allocated) == 1 else 's'} {','.join(map(str, found.allocated))}"
    return (
        f"was given {own} but uses GPU {found.gpu} (process {found.pid}): it probably sets"
        " CUDA_VISIBLE_DEVICES itself, although the scheduler has already set it; if the job must run on that"
        f" GPU, add [allowed={found.gpu}] to its line"
    )
