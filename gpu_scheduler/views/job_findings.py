"""Formats the findings about one job that need no check of files or programs, and those of a wait for it."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.command.shell_words import has_place
from gpu_scheduler.core.model.finding import Finding, bad, ok, warn
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import UNRESOLVED
from gpu_scheduler.core.model.states import WAITING, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import and_more, count_noun, limit_length, pid_text, safe_text
from gpu_scheduler.core.text.secrets import masked_json, picked
from gpu_scheduler.store.jobs_files import MalformedLineRecord
from gpu_scheduler.views.job_text import outcome_text, reason_text
from gpu_scheduler.views.layout import wrap_words
from gpu_scheduler.views.wait_text import held_text, job_reason_text, unmet_parents_text

if TYPE_CHECKING:
    from gpu_scheduler.app.diagnosis import LineFacts
    from gpu_scheduler.app.job_wait import AwaitedJob
    from gpu_scheduler.store.records import JobRecord

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


_MAX_NEARBY = 5


def scheduler(pid: int | None, *, is_waiting: bool) -> Finding:
    """Returns the finding about the scheduler. It is bad if the job waits and no scheduler is running."""
    if pid is None and not is_waiting:
        return ok("scheduler", "not running")
    if pid is None:
        return bad("scheduler", "not running, so no job starts", "run `start`")
    return ok("scheduler", f"running, {pid_text(pid)}")


def held(job: JobRecord, reason: str | None) -> Finding:
    """Returns the finding about a held job, with the command that queues it."""
    return bad("held", reason or "the job is held", f"`{queueing_command(job)}` queues it")


def queueing_command(job: JobRecord) -> str:
    """Returns the command that queues a held job; one that can continue from its checkpoint does."""
    if job.held_by in ("user", "line"):
        return f"release {job.id}"
    if not job.spec.can_start:
        return f"retry {job.id} --set command='…'"
    resumes = job.checkpoint is not None and has_place(job.spec)
    return f"resume --job {job.id}" if resumes else f"retry {job.id}"


def unmanaged(allowed: tuple[int, ...] | None, managed: Collection[int]) -> Iterator[Finding]:
    """Yields a finding if the job's line allows GPUs that the scheduler does not manage."""
    missing = [index for index in allowed or () if index not in managed]
    if missing:
        which = f"GPU {missing[0]} is" if len(missing) == 1 else f"GPUs {format_gpu_list(missing)} are"
        message = f"{which} not managed; the managed GPUs are {format_gpu_list(managed) or 'none'}"
        yield warn("allowed GPUs", message, "correct the job's line, or change `start --gpus`")


def order(priority: int, count: int, first_ids: Sequence[int]) -> Finding:
    """Returns a finding with the number of queued jobs before the job and the ids of the first ones."""
    if not count:
        return ok("order", f"first in the queue (priority {priority})")
    listed = and_more(", ".join(map(str, first_ids)), count - len(first_ids))
    return ok(
        "order",
        f"priority {priority}; {count_noun(count, 'queued job')} before it: {listed};"
        " the scheduler tries jobs in this order, and a job that fits starts, unless it needs GPUs that are"
        " reserved",
    )


def retry(wait_s: float | None, failures: int) -> Iterator[Finding]:
    """Yields a finding with the number of failed launches and the wait before the next launch."""
    if wait_s is not None and wait_s > 0:
        failed = f"{count_noun(failures, 'failed start')}; " if failures else ""
        yield warn("retry", f"{failed}next try in {wait_s:.0f} s", "")
    elif failures:
        yield ok("retry", f"{count_noun(failures, 'failed start')}; the next try is due")


def line(job: JobRecord, facts: LineFacts) -> Iterator[Finding]:
    """Yields findings about the job's line in its jobs file."""
    kind, _, path = job.source.partition(":")
    if kind != "file":
        if job.line_wait is not None:
            yield warn(
                "line", f"the Redis queue has not confirmed {job.source} yet",
                "`redis-queue` shows who holds it",
            )  # fmt: skip
        else:
            yield ok(
                "line",
                f"none: {f'taken from {job.source}' if kind == 'redis' else f'submitted by `{kind}`'}",
            )
        return
    wait, where = job.line_wait, facts.location
    if wait is not None and wait.kind is WaitKind.LINE_MALFORMED:
        yield bad(
            "line",
            f"{path}:{wait.line_number} is malformed; the job waits until the line is corrected",
            "correct the line",
        )
    elif where is None or (wait is not None and wait.kind is WaitKind.LINE_REMOVED):
        yield warn("line", f"no longer in {path}", "add the line again, or `cancel` the job")
    else:
        yield ok("line", f"{where.path}:{where.number}")
    nearby = facts.nearby[:_MAX_NEARBY]
    for one in nearby:
        yield warn(
            "near it",
            f"{path}:{one.number} is malformed: {one.problem}",
            "correct that line; `status` shows the accepted form",
        )
    rest = facts.malformed - len(nearby)
    if rest > 0:
        yield warn(
            "jobs file",
            f"{count_noun(rest, 'malformed line')} elsewhere in {path}",
            "`status` lists all malformed lines",
        )


def manual_rerun(folder: str) -> Finding:
    """Returns a finding with the command that runs a failed attempt again by hand."""
    return ok("by hand", f"bash {shlex.quote(folder)}/command.sh")


#: Reasons to wait that a user may have to change.
_FOR_USER = frozenset({WaitKind.STORAGE, WaitKind.GPUS_UNREADABLE, WaitKind.LINE_MALFORMED})


def end_text(job: JobView) -> str:
    """Formats the end of a job: "job 3 completed", "job 3 failed, exit code 7"."""
    record = job.record
    outcome = outcome_text(record.outcome or Outcome.ENDED, record.exit_code, record.signal)
    more = None if record.reason is None else reason_text(record.reason, without_exit=True)
    return safe_text(f"job {record.id} {outcome}{f': {more}' if more else ''}")


def obstacle_text(job: AwaitedJob) -> str | None:
    """Formats why a waiting job may need the user; None if it does not wait or starts by itself."""
    view, record = job.view, job.view.record
    if record.state not in WAITING:
        return None
    if record.state is JobState.HELD:
        return f"{unfinished_job_text(view)}; {_queueing_text(view)}"
    if job.blocker is not None:
        remedy = f"; {_queueing_text(job.blocker)}" if job.blocker.record.state is JobState.HELD else ""
        return f"job {record.id} waits for other jobs, and {unfinished_job_text(job.blocker)}{remedy}"
    if not job.is_scheduler_up:
        return f"job {record.id} waits until `start`, because no scheduler is running"
    if view.infeasible or _needs_user(view):
        return unfinished_job_text(view)
    return None


def _queueing_text(held: JobView) -> str:
    record = held.record
    return f"`{queueing_command(record)}` queues it"


def _needs_user(job: JobView) -> bool:
    if job.wait is None:
        return False
    return job.wait.kind in _FOR_USER or any(parent.id == UNRESOLVED for parent in job.parents)
