"""Formats the findings about one job that need no check of files or programs."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.core.command.shell_words import has_place
from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.text.formatting import count_noun, limit_length, masked_json, picked, safe_text
from gpu_scheduler.show.job_text import outcome_text, reason_text
from gpu_scheduler.show.job_views import JobView
from gpu_scheduler.show.layout import wrap_words
from gpu_scheduler.show.wait_text import held_text, job_reason_text, unmet_parents_text
from gpu_scheduler.store.jobs_files import MalformedLineRecord

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import Job


# Formats the findings of checks as text and JSON.


def finding_object(finding: Finding) -> dict[str, str]:
    """Returns a finding as the object that docs/json.md describes."""
    return {"check": finding.name, **picked(finding, "grade", "message", "remedy")}


def format_finding(finding: Finding, width: int | None = None) -> str:
    """Formats a finding and its remedy as lines. width: the maximum line width, None = unlimited."""
    head = f"{finding.grade:<4}  {finding.name:<20}  "
    texts = [
        safe_text(limit_length(finding.message)),
        *([safe_text(finding.remedy)] if finding.remedy else []),
    ]
    if width is not None:
        texts = [row for text in texts for row in wrap_words(text, max(20, width - len(head)))]
    return head + f"\n{' ' * len(head)}".join(texts)


def summary_text(findings: Sequence[Finding]) -> str:
    """Formats the numbers of warnings and of bad findings."""
    grades = [finding.grade for finding in findings]
    return f"{count_noun(grades.count('warn'), 'warning')}, {grades.count('bad')} bad"


def findings_to_json(findings: Sequence[Finding]) -> str:
    """Formats the findings of `doctor` as JSON, as docs/json.md describes."""
    is_ok = all(finding.grade != "bad" for finding in findings)
    value = {"ok": is_ok, "checks": [finding_object(one) for one in findings]}
    return masked_json(value, 2)


# Summarizes which work a draining scheduler leaves unfinished, and why.


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
    return f"job {job.record.id} waits: {_short_text(job_reason_text(job) or 'not examined yet')}"


def _short_text(text: str) -> str:
    return safe_text(limit_length(text, _MAX_REASON_CHARACTERS))


def queueing_command(job: Job) -> str:
    """Returns the command that queues a held job; one that can continue from its checkpoint does."""
    if job.held_by in ("user", "line"):
        return f"release {job.id}"
    if not job.spec.can_start:
        return f"retry {job.id} --set command='…'"
    resumes = job.checkpoint is not None and has_place(job.spec)
    return f"resume --job {job.id}" if resumes else f"retry {job.id}"


def end_text(job: JobView) -> str:
    """Formats the end of a job: "job 3 completed", "job 3 failed, exit code 7"."""
    record = job.record
    outcome = outcome_text(record.outcome or Outcome.ENDED, record.exit_code, record.signal)
    more = None if record.reason is None else reason_text(record.reason, without_exit=True)
    return safe_text(f"job {record.id} {outcome}{f': {more}' if more else ''}")
