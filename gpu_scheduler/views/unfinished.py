"""Summarizes which work a draining scheduler leaves unfinished, and why."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import limit_length, safe_text
from gpu_scheduler.store.jobs_files import MalformedLineRecord
from gpu_scheduler.views.parent_text import unmet_parents_text
from gpu_scheduler.views.wait_text import held_text, job_reason_text

#: Maximum number of malformed lines and jobs, together, that are listed.
MAX_ITEMS = 10
#: Maximum number of characters of one reason that are shown.
_MAX_REASON_CHARACTERS = 200


def unfinished_text(malformed: Sequence[MalformedLineRecord], jobs: Sequence[JobView]) -> str:
    """Lists the malformed lines, then the unfinished jobs; returns "" if there are none.

    Jobs that wait for other jobs come last.
    """
    jobs = sorted(jobs, key=_waits_for_jobs)
    items = [*map(_malformed_line_text, malformed[:MAX_ITEMS]), *map(unfinished_job_text, jobs)][:MAX_ITEMS]
    more = len(malformed) + len(jobs) - len(items)
    if more:
        items.append(f"and {more:,} more (see `status --all`)")
    return "; ".join(items)


def _malformed_line_text(line: MalformedLineRecord) -> str:
    return f"line {line.number} of {posixpath.basename(line.path)} is malformed: {_short_text(line.problem)}"


def _waits_for_jobs(job: JobView) -> bool:
    return job.wait is not None and job.wait.kind is WaitKind.PARENTS


def unfinished_job_text(job: JobView) -> str:
    """Formats a job that waits, with the reason: "job 3 is held by the user"."""
    if job.record.state is JobState.HELD:
        return f"job {job.record.id} is {_short_text(held_text(job))}"
    if job.wait is not None and job.wait.kind is WaitKind.LINE_MALFORMED:
        return f"job {job.record.id} waits until line {job.wait.line_number} is corrected"
    if _waits_for_jobs(job):
        return f"job {job.record.id} waits for {_short_text(unmet_parents_text(job.parents))}"
    return f"job {job.record.id} waits: {_short_text(job_reason_text(job) or 'not tried yet')}"


def _short_text(text: str) -> str:
    return safe_text(limit_length(text, _MAX_REASON_CHARACTERS))
