"""Waits for jobs on behalf of `submit --wait` and `wait --job`, and reports their progress on stderr."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.app.job_wait import AwaitedJob, wait_for_jobs
from gpu_scheduler.cli.program import print_message
from gpu_scheduler.core.model.gpu_list import format_ranges
from gpu_scheduler.views.job_wait import end_text, obstacle_text

if TYPE_CHECKING:
    from gpu_scheduler.app.job_refs import JobRef
    from gpu_scheduler.app.location import Location

#: The exit code after a timeout. The command `timeout` uses the same code.
EXIT_TIMED_OUT = 124
#: Maximum number of lines that are printed at once.
_MAX_LINES = 20


def wait_until_ended(location: Location, jobs: Collection[JobRef], timeout_s: float | None = None) -> int:
    """Waits until the jobs have ended. Returns the largest of their exit codes, or 124 after the timeout.

    After Ctrl-C, says that the jobs continue, and raises KeyboardInterrupt.
    """
    progress = _Progress()
    try:
        code = wait_for_jobs(location, jobs, progress.report, timeout_s)
    except KeyboardInterrupt:
        if progress.left:
            print_message(f"no longer waiting; {_left_text(progress.left)}")
        raise
    if code is None:
        print_message(f"not ended within {timeout_s:g} s: {_left_text(progress.left)}")
        return EXIT_TIMED_OUT
    return code


def _left_text(job_ids: Sequence[int]) -> str:
    listed = format_ranges(sorted(job_ids)).replace(",", "")
    if len(job_ids) == 1:
        return f"job {listed} continues, and `wait --job {listed}` waits for it again"
    return f"jobs {listed} continue, and `wait --job {listed}` waits for them again"


class _Progress:
    """Reports the end of each job, and each new reason why a job may need the user.

    left: the ids of the jobs that have not ended.
    """

    def __init__(self) -> None:
        self.left: list[int] = []
        self._obstacles: dict[int, str | None] = {}

    def report(self, jobs: Sequence[AwaitedJob]) -> None:
        """Prints what has changed since the last report."""
        self.left = [job.view.record.id for job in jobs if not job.has_ended]
        lines = [end_text(job.view) for job in jobs if job.has_ended]
        for job in jobs:
            text, job_id = obstacle_text(job), job.view.record.id
            if text is not None and text != self._obstacles.get(job_id):
                lines.append(text)
            self._obstacles[job_id] = text
        for line in lines[:_MAX_LINES]:
            print_message(line)
        if len(lines) > _MAX_LINES:
            print_message(f"and {len(lines) - _MAX_LINES:,} more (see `status --all`)")
