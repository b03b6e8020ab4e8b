"""Resolves the jobs that `submit` and `set` name in `after` and `after-any`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_scheduler.app.job_refs import job_record, named_jobs
from gpu_scheduler.app.line_note import Note, NoteKind
from gpu_scheduler.core.model.dependency import Dependency, DependencyKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.dependencies import ParentStatus, parent_status
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.store.ancestors import failed_ancestors
from gpu_scheduler.store.job_lists import job_exists
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: Maximum number of digits of a job id. The store cannot compare larger numbers.
_MAX_DIGITS = 15
#: Maximum number of jobs that a note says to retry.
_MAX_RETRIED = 5
#: A range of ids, which other commands accept.
_RANGE = re.compile(r"[0-9]+-[0-9]+", re.ASCII)


@dataclass(frozen=True)
class NamedParents:
    """The dependencies of a new job. notes: the parents because of which the job will be skipped."""

    dependencies: tuple[Dependency, ...]
    notes: tuple[Note, ...]


def resolve_parents(store: Store, spec: JobSpec) -> NamedParents:
    """Returns the jobs that a new job waits for. A name means what it means in all commands (`job_refs`).

    Raises UsageError for a job that does not exist.
    """
    dependencies: list[Dependency] = []
    notes: list[Note] = []
    for key, kind, reference in _references(spec):
        try:
            jobs = parents_meant(store, reference)
        except SchedulerError as error:
            raise UsageError(f"--{key} {reference}: {error}") from None
        dependencies += [Dependency(job.id, kind, reference) for job in jobs]
        notes += parent_notes(store, kind, jobs)
    return NamedParents(tuple(dependencies), tuple(notes))


def parents_meant(store: Store, reference: str) -> list[JobRecord]:
    """Returns the jobs that an id, a name, a group or a pattern means. Raises SchedulerError if none."""
    if _RANGE.fullmatch(reference) and not job_exists(store, reference):
        raise SchedulerError("this is a range, which is not possible here; separate the ids with commas")
    if not reference.isdigit():
        return named_jobs(store, reference)
    if len(reference) > _MAX_DIGITS:
        raise SchedulerError(f"there is no job {reference}; `status --all` lists the jobs")
    return [job_record(store, int(reference))]


def _references(spec: JobSpec) -> Iterator[tuple[str, DependencyKind, str]]:
    """Yields the attribute, the kind and the text of each reference."""
    yield from (("after", DependencyKind.COMPLETED, one) for one in spec.after)
    yield from (("after-any", DependencyKind.FINISHED, one) for one in spec.after_any)


def parent_notes(store: Store, kind: DependencyKind, parents: Iterable[JobRecord]) -> Iterator[Note]:
    """Yields a note if the job will be skipped because of one of these parents, with the jobs to retry."""
    failed = (one for one in parents if parent_status(kind, one.state, one.outcome) is ParentStatus.FAILED)
    parent = next(failed, None)
    if parent is None:
        return
    is_skipped = parent.outcome is Outcome.SKIPPED
    retried = failed_ancestors(store, parent.id, _MAX_RETRIED) if is_skipped else [parent.id]
    data = {"job": parent.id, "outcome": parent.outcome, "retried": tuple(map(str, retried))}
    yield Note(NoteKind.PARENT_FAILED, data)
