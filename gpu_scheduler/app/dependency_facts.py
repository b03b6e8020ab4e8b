"""Collects the facts about the jobs on which a job depends, and about those that depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_scheduler.app.job_views import ViewContext, job_view
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.states import WAITING
from gpu_scheduler.store.ancestors import ancestor_that_needs_user, failed_ancestors
from gpu_scheduler.store.dependencies import children, parents_of
from gpu_scheduler.store.jobs_files import LineLocation, line_of
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: Maximum number of jobs that are named.
_MAX_NAMED = 5


@dataclass(frozen=True)
class DependencyFacts:
    """The facts about a job's dependencies, besides its parents.

    children: the first jobs that depend on it; child_count: the number of all these jobs. blocker: the
    nearest job for which it waits, directly or indirectly, and that needs the user; None if there is none.
    failed: the first jobs because of whose ends it is skipped. line: where the job's line is; None if it has
    none.
    """

    children: tuple[int, ...] = ()
    child_count: int = 0
    blocker: JobView | None = None
    failed: tuple[int, ...] = ()
    line: LineLocation | None = None


def dependency_facts(store: Store, job: JobRecord, context: ViewContext) -> DependencyFacts:
    """Returns the facts about a job's dependencies."""
    below = children(store, job.id)
    return DependencyFacts(
        children=tuple(below[:_MAX_NAMED]),
        child_count=len(below),
        blocker=blocking_ancestor(store, job, context),
        failed=tuple(failed_ancestors(store, job.id, _MAX_NAMED)) if job.failed_parents else (),
        line=line_of(store, job.id),
    )


def blocking_ancestor(store: Store, job: JobRecord, context: ViewContext) -> JobView | None:
    """Returns the nearest job for which a job waits and that needs the user; None if there is none."""
    if not job.unmet_parents or job.state not in WAITING:
        return None
    infeasible = [key for key, reason in context.wait_reasons.items() if reason.is_infeasible]
    found = ancestor_that_needs_user(store, job.id, infeasible)
    record = None if found is None else store.job(found)
    if record is None:
        return None
    newest = store.newest_attempts([record.id]).get(record.id)
    return job_view(record, newest, replace(context, parents=parents_of(store, [record.id])))
