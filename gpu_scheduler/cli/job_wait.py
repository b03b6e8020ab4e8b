"""Waits for jobs on behalf of `submit --wait` and `wait --job`, and reports their progress on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.app.job_wait import AwaitedJob, wait_for_jobs
from gpu_scheduler.cli.program import print_message
from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.views.job_findings import end_text, obstacle_text

if TYPE_CHECKING:
    from gpu_scheduler.app.location import Location

#: The exit code after a timeout. The command `timeout` uses the same code.
EXIT_TIMED_OUT = 124
#: Maximum number of lines that are printed at once.
_MAX_LINES = 20


class JobWait:
    """A wait for jobs. After Ctrl-C anywhere in its `with` block, says which jobs continue.

    left: the ids of the jobs that have not ended, as far as known. The caller sets it before `until_ended`.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self.left: list[int] = []
        self._obstacles: dict[int, str | None] = {}

    def __enter__(self) -> JobWait:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt and self.left:
            print_message(f"no longer waiting; {_left_text(self.left)}")

    def until_ended(self, timeout_s: float | None = None) -> int:
        """Waits until the jobs have ended and reports their progress.

        Returns the largest of their exit codes, or 124 after the timeout.
        """
        code = wait_for_jobs(self._location, self.left, self._report, timeout_s)
        if code is None:
            print_message(f"not ended within {timeout_s:g} s: {_left_text(self.left)}")
            return EXIT_TIMED_OUT
        return code

    def _report(self, jobs: Sequence[AwaitedJob]) -> None:
        """Prints the end of each job, and each new reason why a job may need the user."""
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


def _left_text(job_ids: Sequence[int]) -> str:
    listed = format_ranges(sorted(job_ids)).replace(",", "")
    if len(job_ids) == 1:
        return f"job {listed} continues, and `wait --job {listed}` waits for it again"
    return f"jobs {listed} continue, and `wait --job {listed}` waits for them again"
