"""Checks the changes that `set` requests for a job, before any of them is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from gpu_scheduler.control.line_note import Note, NoteKind
from gpu_scheduler.core.jobsfile.attributes import key_of
from gpu_scheduler.core.jobsfile.compose import check_changes, format_command_line, parse_changes
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import (
    REFERENCES,
    Dependency,
    DependencyKind,
    JobSpec,
    ParentStatus,
    parent_status,
    references,
)
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.jobs_file_text import parse_job_line
from gpu_scheduler.show.job_refs import job_record, named_jobs
from gpu_scheduler.store.job_lists import failed_ancestors, job_exists
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.store import Store

# Resolves the jobs that `submit` and `set` name in `after` and `after-any`.


#: Maximum number of digits of a job id. The store cannot compare larger numbers.
_MAX_DIGITS = 15
#: Maximum number of jobs that a note says to retry.
_MAX_RETRIED = 5
#: A range of ids, which other commands accept.
_RANGE = re.compile(r"[0-9]+-[0-9]+", re.ASCII)


class NamedParents(Struct, frozen=True):
    """The dependencies of a job. notes: the parents because of which the job will be skipped."""

    dependencies: tuple[Dependency, ...]
    notes: tuple[Note, ...]


def resolve_parents(store: Store, attributes: Mapping[str, Any], dashes: str = "--") -> NamedParents:
    """Returns the jobs that a job is to wait for. A name means what it means in all commands (`job_refs`).

    dashes: what precedes an attribute in an error. Raises UsageError for a job that does not exist.
    """
    dependencies: list[Dependency] = []
    notes: list[Note] = []
    for kind, reference in references(attributes):
        try:
            jobs = _parents_meant(store, reference)
        except SchedulerError as error:
            raise UsageError(f"{dashes}{kind.attribute} {reference}: {error}") from None
        dependencies += [Dependency(job.id, kind, reference) for job in jobs]
        notes += _parent_notes(store, kind, jobs)
    return NamedParents(tuple(dependencies), tuple(notes))


def _parents_meant(store: Store, reference: str) -> list[Job]:
    """Returns the jobs that an id, a name, a group or a pattern means. Raises SchedulerError if none."""
    if _RANGE.fullmatch(reference) and not job_exists(store, reference):
        raise SchedulerError("this is a range, which is not possible here; separate the ids with commas")
    if not reference.isdigit():
        return named_jobs(store, reference)
    if len(reference) > _MAX_DIGITS:
        raise SchedulerError(f"there is no job {reference}; `status --all` lists the jobs")
    return [job_record(store, int(reference))]


def _parent_notes(store: Store, kind: DependencyKind, parents: Iterable[Job]) -> Iterator[Note]:
    """Yields a note if the job will be skipped because of one of these parents, with the jobs to retry."""
    failed = (one for one in parents if parent_status(kind, one.state, one.outcome) is ParentStatus.FAILED)
    parent = next(failed, None)
    if parent is None:
        return
    is_skipped = parent.outcome is Outcome.SKIPPED
    retried = failed_ancestors(store, parent.id, _MAX_RETRIED) if is_skipped else [parent.id]
    data = {"job": parent.id, "outcome": parent.outcome, "retried": tuple(map(str, retried))}
    yield Note(NoteKind.PARENT_FAILED, data)


class AttributeChange(Struct, frozen=True):
    """One change. args: the arguments of its request; notes: the new parents that make the job skipped."""

    args: dict[str, Any]
    notes: tuple[Note, ...] = ()


def attribute_changes(store: Store, job_id: int, items: Iterable[str]) -> list[AttributeChange]:
    """Returns the changes that are meant. items: as in `set 3 vram=18G after=`.

    Raises UsageError for a wrong item, and SchedulerError if the job does not exist, if it has a line in a
    jobs file, or if it was skipped and other attributes than its dependencies are to change.
    """
    job = job_record(store, job_id)
    line = line_of(store, job_id)
    if line is not None:
        raise SchedulerError(
            f"job {job_id} has a line in a jobs file; edit line {line.number} of {line.path} instead"
        )
    try:
        changes = parse_changes(items, frozenset(store.gpu_indices().values()) or None)
        if "command" in changes:
            changes["command"] = _checked_command(job.spec, changes["command"])
        check_changes(job.spec, changes)
    except ValueError as error:
        raise UsageError(f"{error}; nothing was changed") from None
    others = [key_of(field) for field in changes if field not in REFERENCES]
    if job.outcome is Outcome.SKIPPED and others:
        raise SchedulerError(
            f"job {job_id} was skipped, so only after and after-any can be changed, not {', '.join(others)};"
            " nothing was changed"
        )
    return [_change(store, field, value) for field, value in changes.items()]


def _checked_command(spec: JobSpec, command: str) -> str:
    """Returns a command as `submit` takes it. Raises ValueError if it is not valid or the job takes none."""
    if spec.kind == "csv":
        raise ValueError("the job runs a script with its arguments, so it takes no command")
    return parse_job_line(format_command_line([], [command]), spec.cwd, None)[0].text


def _change(store: Store, field: str, value: Any) -> AttributeChange:
    args = {"name": field, "value": value}
    if field not in REFERENCES:
        return AttributeChange(args)
    found = resolve_parents(store, {field: value}, dashes="")
    parents = [(one.parent_id, one.reference) for one in found.dependencies]
    return AttributeChange({**args, "parents": parents}, found.notes)
