"""Formats the findings about the jobs on which a job depends, and about those that depend on it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from gpu_scheduler.app.dependency_facts import DependencyFacts
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.dependency import UNRESOLVED, Parent
from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.scheduling.dependencies import ParentStatus, status_of
from gpu_scheduler.core.text.formatting import and_more, count_noun, safe_text
from gpu_scheduler.views.job_findings import queueing_command
from gpu_scheduler.views.parent_text import ATTRIBUTES, parent_text
from gpu_scheduler.views.unfinished import unfinished_job_text

#: Maximum number of parents with a finding each.
_MAX_PARENTS = 10
#: The parents of a job in the order of their findings: first those that keep the job from starting.
_ORDER = {ParentStatus.FAILED: 0, ParentStatus.PENDING: 1, ParentStatus.MET: 2}


def findings(job: JobView, facts: DependencyFacts) -> Iterator[Finding]:
    """Yields findings about a job's parents, the job because of which it cannot start, and its children."""
    parents = sorted(job.parents, key=lambda parent: (_ORDER[status_of(parent)], parent.id))
    yield from (_parent(job, parent, facts) for parent in parents[:_MAX_PARENTS])
    if len(parents) > _MAX_PARENTS:
        yield ok(Check.PARENT, f"and {count_noun(len(parents) - _MAX_PARENTS, 'more job')}")
    if facts.blocker is not None:
        yield _blocker(facts.blocker)
    if facts.child_count:
        listed = and_more(", ".join(map(str, facts.children)), facts.child_count - len(facts.children))
        depend = "depends" if facts.child_count == 1 else "depend"
        yield ok(Check.CHILDREN, f"{count_noun(facts.child_count, 'job')} {depend} on it: {listed}")


def _parent(job: JobView, parent: Parent, facts: DependencyFacts) -> Finding:
    message = parent_text(parent)
    if parent.id == UNRESOLVED:
        return bad(Check.PARENT, message, _change_remedy(job.record.id, facts, ATTRIBUTES[parent.kind]))
    status = status_of(parent)
    if status is ParentStatus.MET:
        return ok(Check.PARENT, message)
    if status is ParentStatus.PENDING or job.record.state is JobState.FINISHED:
        return warn(Check.PARENT, message, "")
    when = " once it is queued" if job.record.state is JobState.HELD else ""
    return bad(Check.PARENT, f"{message}; this job will be skipped{when}", skip_remedy(job.record.id, facts))


def _blocker(job: JobView) -> Finding:
    number = job.record.id
    if job.record.state is JobState.HELD:
        remedy = f"`{queueing_command(job.record)}` queues it"
    else:
        remedy = f"`why {number}` explains it"
    return bad(Check.BLOCKED_BY, unfinished_job_text(job), remedy)


def skip_remedy(job_id: int, facts: DependencyFacts) -> str:
    """Returns the remedy for a job that is skipped, or will be skipped."""
    change = _change_remedy(job_id, facts)
    if not facts.failed:
        return change
    ids = ", ".join(map(str, facts.failed))
    command = " ".join(map(str, facts.failed))
    noun = "job" if len(facts.failed) == 1 else "jobs"
    return f"`retry {command}` queues {noun} {ids} and this job again; or {change}"


def _change_remedy(job_id: int, facts: DependencyFacts, attribute: str = "after") -> str:
    """Returns how to change the dependencies of a job."""
    if facts.line is not None:
        return f"change line {facts.line.number} of {safe_text(posixpath.basename(facts.line.path))}"
    command = f"set {job_id} {attribute}="
    return f"change the dependency with `{command}JOBS`, or remove it with `{command}`"
