"""Imports the pending jobs of a `queue.json`, the file in which gpuq kept its queue.

All jobs are inserted in one transaction, and the file is renamed after the commit. The digest of the file is
part of the source of its jobs. If a crash comes between the commit and the rename, the next import therefore
finds the jobs and only renames the file.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from gpu_scheduler.app.line_note import LineNote
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.new_line import job_warnings
from gpu_scheduler.app.queued_command import QueuedCommand, queued_command
from gpu_scheduler.app.recorded_setting import recorded_setting
from gpu_scheduler.app.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.core.model.dependency import Dependency, DependencyKind
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.errors import StoreNotFoundError, UsageError
from gpu_scheduler.intake.queue_json import QueueEntry, parse_queue
from gpu_scheduler.intake.queue_parents import Parents, find_parents
from gpu_scheduler.store.job_lists import job_ids_of_source
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem

#: Maximum number of problems that an error lists.
_MAX_PROBLEMS = 20


@dataclass(frozen=True)
class MissingParent:
    """A parent that neither completed nor was imported. label: such as "job 2 (eval)"."""

    label: str
    status: str


@dataclass(frozen=True)
class ImportedJob:
    """A job that was imported.

    given_name: its name in the file; after: the ids of its parents; missing: the parents for which it is
    held; ignored: the variables in its `env` that the scheduler sets itself.
    """

    id: int
    name: str | None
    given_name: str | None
    text: str
    after: tuple[int, ...]
    missing: tuple[MissingParent, ...]
    ignored: Mapping[str, str]
    warnings: tuple[LineNote, ...]


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    earlier: the ids of the jobs that an earlier import of the file inserted; left_out: the number of jobs
    that were not imported, by status; renamed_to: the new path of the file, None if it was not renamed;
    rename_problem: why it could not be renamed.
    """

    path: str
    jobs: tuple[ImportedJob, ...]
    earlier: tuple[int, ...]
    left_out: Mapping[str, int]
    renamed_to: str | None
    rename_problem: str | None
    scheduler_pid: int | None


def import_queue(location: Location, path: str) -> ImportReport:
    """Imports the pending jobs of a file. Raises UsageError if a job has a problem; then imports nothing."""
    data = _read(path)
    source = f"import:{hashlib.sha256(data).hexdigest()[:32]}"
    earlier = _imported_before(location, source)
    entries, jobs = ([], ()) if earlier else _check(path, data)
    imported: tuple[ImportedJob, ...] = ()
    pid = None
    if jobs:
        recorded = recorded_setting(location, "")
        warnings = [tuple(job_warnings(recorded, job.command.spec)) for job in jobs]
        create_missing_store(location)
        with open_store(location) as store:
            refuse_copy(store)
            with store.db.transaction():
                earlier = tuple(job_ids_of_source(store, source))  # another `import` may have been faster
                imported = () if earlier else tuple(_insert(store, jobs, source, warnings))
            store.data_dir.ring_doorbell()
            pid = scheduler_pid_of(store)
    renamed, problem = _rename(path, data) if imported or earlier else (None, None)
    left_out = Counter(entry.status for entry in entries if not entry.is_pending)
    return without_secrets(ImportReport(path, imported, earlier, left_out, renamed, problem, pid))


def _imported_before(location: Location, source: str) -> tuple[int, ...]:
    try:
        with open_store(location, read_only=True) as store:
            return tuple(job_ids_of_source(store, source))
    except StoreNotFoundError:
        return ()


@dataclass(frozen=True)
class _CheckedJob:
    entry: QueueEntry
    command: QueuedCommand
    waits_for: Sequence[int]
    missing: tuple[MissingParent, ...]


def _read(path: str) -> bytes:
    found = safe_file.read(path)
    if isinstance(found, FileProblem):
        remedy = "; copy it to a file that only you can write, and import the copy" if found.remedy else ""
        raise UsageError(f"{path} {found.description}{remedy}; nothing was imported")
    return found.data


def _check(path: str, data: bytes) -> tuple[list[QueueEntry], tuple[_CheckedJob, ...]]:
    """Returns all entries, and the jobs to insert, parents first. Raises UsageError with all problems."""
    try:
        entries, problems = parse_queue(data)
    except ValueError as error:
        raise UsageError(f"{path}: {error}; nothing was imported") from None
    # The parents of the other jobs are unclear as long as a job cannot be parsed.
    parents = Parents({}, {}, ()) if problems else find_parents(entries)
    found: dict[int, _CheckedJob] = {}
    for entry in entries:
        missing = tuple(
            MissingParent(parent.label, parent.status) for parent in parents.missing.get(entry.number, ())
        )
        try:
            if entry.is_pending:
                command = queued_command(entry, os.getcwd(), hold=bool(missing))
                waits_for = parents.waits_for.get(entry.number, ())
                found[entry.number] = _CheckedJob(entry, command, waits_for, missing)
        except ValueError as error:
            problems.append(f"{entry.label}: {error}")
    problems += parents.problems
    if problems:
        raise _problems_error(path, problems)
    return entries, tuple(found[number] for number in parents.waits_for)


def _problems_error(path: str, problems: Sequence[str]) -> UsageError:
    more = [f"… and {len(problems) - _MAX_PROBLEMS:,} more"] if len(problems) > _MAX_PROBLEMS else []
    listed = "\n".join(f"  {problem}" for problem in chain(problems[:_MAX_PROBLEMS], more))
    return UsageError(
        f"{path}: {count_noun(len(problems), 'problem')}; nothing was imported\n{listed}\n"
        "correct the file, or remove these jobs from it, and import it again"
    )


def _insert(
    store: Store, jobs: Sequence[_CheckedJob], source: str, warnings: Sequence[tuple[LineNote, ...]]
) -> Iterator[ImportedJob]:
    ids: dict[int, int] = {}
    for job, notes in zip(jobs, warnings, strict=True):
        entry, command = job.entry, job.command
        after = tuple(ids[number] for number in job.waits_for)
        spec = replace(command.spec, after=tuple(map(str, after)))
        edges = [Dependency(parent, DependencyKind.COMPLETED, str(parent)) for parent in after]
        labels = ", ".join(parent.label for parent in job.missing)
        held_because = StateReason(ReasonKind.PARENT_NOT_IMPORTED, subject=labels) if labels else None
        ids[entry.number] = job_id = store.insert_job(
            spec, source, dependencies=edges, held_because=held_because
        )
        yield ImportedJob(
            job_id, spec.name, entry.name, spec.text, after, job.missing, command.ignored, notes
        )


def _rename(path: str, data: bytes) -> tuple[str | None, str | None]:
    """Renames an imported file to a free name.

    Returns the new path, or why the file was not renamed; neither if another `import` has renamed it.
    """
    names = chain([f"{path}.bak"], (f"{path}.bak.{number}" for number in count(1)))
    free = next(name for name in names if not os.path.lexists(name))
    try:
        if Path(path).read_bytes() != data:
            return None, "another program has just changed it"
        os.rename(path, free)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, error.strerror or str(error)
    return free, None
