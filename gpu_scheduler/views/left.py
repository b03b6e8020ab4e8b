"""Summarizes the work that a draining scheduler leaves unfinished, and why."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from gpu_scheduler.core.states import JobState
from gpu_scheduler.views.report import JobShown, MalformedShown
from gpu_scheduler.views.words import shortened, visible

#: Maximum number of lines and jobs listed.
MOST = 10
#: Maximum number of characters shown of one reason.
_LONGEST = 200


def left_words(malformed: Sequence[MalformedShown], jobs: Sequence[JobShown]) -> str:
    """Lists the malformed lines, then the unfinished jobs; returns "" if there are none."""
    items = [*map(_line, malformed[:MOST]), *map(_job, jobs)][:MOST]
    more = len(malformed) + len(jobs) - len(items)
    if more:
        items.append(f"and {more:,} more (see `status --all`)")
    return "; ".join(items)


def _line(line: MalformedShown) -> str:
    return f"line {line.number} of {posixpath.basename(line.path)} is malformed: {_shown(line.reason)}"


def _job(job: JobShown) -> str:
    if job.state == JobState.HELD.value:
        reason = job.reason or "held"
        return f"job {job.id} is {_shown(reason if reason.startswith('held') else f'held: {reason}')}"
    if job.line_wait is not None and job.line_wait.kind == "malformed":
        return f"job {job.id} waits for line {job.line_wait.number}"
    return f"job {job.id} waits: {_shown(job.reason or 'not tried yet')}"


def _shown(text: str) -> str:
    return visible(shortened(text, _LONGEST))
