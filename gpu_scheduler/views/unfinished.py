"""Summarizes the work that a draining scheduler leaves unfinished, and why."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from gpu_scheduler.app.status_report import JobView, MalformedLineView
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.text.formatting import limit_length, safe_text

#: Maximum number of lines and jobs listed.
MAX_ITEMS = 10
#: Maximum number of characters shown of one reason.
_MAX_REASON_CHARACTERS = 200


def unfinished_text(malformed: Sequence[MalformedLineView], jobs: Sequence[JobView]) -> str:
    """Lists the malformed lines, then the unfinished jobs; returns "" if there are none."""
    items = [*map(_malformed_line_text, malformed[:MAX_ITEMS]), *map(_job_text, jobs)][:MAX_ITEMS]
    more = len(malformed) + len(jobs) - len(items)
    if more:
        items.append(f"and {more:,} more (see `status --all`)")
    return "; ".join(items)


def _malformed_line_text(line: MalformedLineView) -> str:
    return f"line {line.number} of {posixpath.basename(line.path)} is malformed: {_short_text(line.reason)}"


def _job_text(job: JobView) -> str:
    if job.state == JobState.HELD.value:
        reason = job.reason or "held"
        return f"job {job.id} is {_short_text(reason if reason.startswith('held') else f'held: {reason}')}"
    if job.line_wait is not None and job.line_wait.kind == "malformed":
        return f"job {job.id} waits for line {job.line_wait.line_number}"
    return f"job {job.id} waits: {_short_text(job.reason or 'not tried yet')}"


def _short_text(text: str) -> str:
    return safe_text(limit_length(text, _MAX_REASON_CHARACTERS))
