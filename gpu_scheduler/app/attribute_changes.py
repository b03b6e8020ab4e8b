"""Checks the changes that `set` requests for a job, before any of them is recorded."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.app.job_refs import job_record
from gpu_scheduler.app.line_note import Note
from gpu_scheduler.app.named_parents import parent_notes, parents_meant
from gpu_scheduler.core.jobsfile.attribute_changes import check_changes, parse_changes
from gpu_scheduler.core.jobsfile.attributes import key_of
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.dependency import DependencyKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.text_parser import parse_job_line
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.store import Store

#: The fields of JobSpec that name other jobs.
_REFERENCES = {"after": DependencyKind.COMPLETED, "after_any": DependencyKind.FINISHED}


@dataclass(frozen=True)
class AttributeChange:
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
        file = posixpath.basename(line.path)
        raise SchedulerError(
            f"job {job_id} has a line in a jobs file; edit line {line.number} of {file} instead: {line.path}"
        )
    try:
        changes = parse_changes(items, frozenset(store.gpu_indices().values()) or None)
        if "command" in changes:
            changes["command"] = _checked_command(job.spec, changes["command"])
        check_changes(job.spec, changes)
    except ValueError as error:
        raise UsageError(f"{error}; nothing was changed") from None
    others = [key_of(field) for field in changes if field not in _REFERENCES]
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
    if field not in _REFERENCES:
        return AttributeChange(args)
    parents: list[tuple[int, str]] = []
    notes: list[Note] = []
    for reference in value:
        try:
            jobs = parents_meant(store, reference)
        except SchedulerError as error:
            raise UsageError(f"{key_of(field)} {reference}: {error}") from None
        parents += [(job.id, reference) for job in jobs]
        notes += parent_notes(store, _REFERENCES[field], jobs)
    return AttributeChange({**args, "parents": parents}, tuple(notes))
