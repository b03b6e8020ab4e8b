"""Imports the pending jobs of a `queue.json`, the file in which gpuq kept its queue.

All jobs are inserted in one transaction, and the file is renamed after the commit. The digest of the file is
part of the source of its jobs. If a crash comes between the commit and the rename, the next import therefore
finds the jobs and only renames the file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from gpu_scheduler.app.line_note import LineNote
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.new_line import job_warnings
from gpu_scheduler.app.recorded_setting import recorded_setting
from gpu_scheduler.app.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.errors import StoreNotFoundError, UsageError
from gpu_scheduler.intake.queue_json import Parents, QueueEntry, find_parents, parse_queue
from gpu_scheduler.intake.text_parser import parse_job_line
from gpu_scheduler.store.job_lists import job_ids_of_source
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem

# Turns a pending job of a `queue.json` into the job that runs its script.


#: Variables that the scheduler sets for every job.
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True)
class QueuedCommand:
    """The job for an entry. ignored: the variables in its `env` that the scheduler sets itself."""

    spec: JobSpec
    ignored: Mapping[str, str]


def queued_command(entry: QueueEntry, cwd: str, *, hold: bool) -> QueuedCommand:
    """Returns the job for a pending entry. Raises ValueError with all its problems.

    cwd: the folder for relative paths, and the working folder of an entry that names none; hold: hold the
    job.
    """
    folder = _absolute(entry.cwd or ".", cwd)
    script = _absolute(entry.script, folder)
    python = _absolute(entry.python, folder) if entry.python and "/" in entry.python else None
    problems = list(_problems(folder, script, python))
    if problems:
        raise ValueError("; ".join(problems))
    program, venv = entry.python or "python3", None
    if python is not None:
        program, venv = python, _virtual_environment(python)
    if venv is not None:
        program = os.path.basename(python or program)
    ignored = {name: entry.env[name] for name in _OWN_VARIABLES if name in entry.env}
    items = [f"env:{key}={value}" for key, value in entry.env.items() if key not in ignored]
    for key, given in (("name", _job_name(entry)), ("venv", venv), ("fail-retries", entry.retries or None)):
        items += [] if given is None else [f"{key}={given}"]
    words = [program, "-u", _as_argument(entry.script), *entry.args]
    spec, _ = parse_job_line(format_command_line(items, words), folder, None)
    return QueuedCommand(replace(spec, hold=hold), ignored)


def _job_name(entry: QueueEntry) -> str | None:
    """Returns the name of the job, with `-` in place of the characters that names may not contain."""
    return _NOT_IN_NAMES.sub("-", entry.name or "").strip("-")[:_MAX_NAME_CHARACTERS] or None


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _as_argument(script: str) -> str:
    """Returns the path as written, or in a form that the interpreter does not mistake for an option."""
    return f"./{script}" if script.startswith("-") else os.path.expanduser(script)


def _problems(folder: str, script: str, python: str | None) -> Iterator[str]:
    if not os.path.isdir(folder):
        yield f"the working folder {folder} does not exist"
    elif not os.path.isfile(script):
        yield f"script {script} {'is not a file' if os.path.exists(script) else 'does not exist'}"
    if python is not None and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        yield f"the interpreter {python} does not exist or is not executable"


def _virtual_environment(python: str) -> str | None:
    """Returns the virtual environment to which an interpreter belongs; None if it belongs to none."""
    programs, root = os.path.dirname(python), os.path.dirname(os.path.dirname(python))
    parts = (f"{root}/pyvenv.cfg", f"{root}/bin/activate")
    return root if os.path.basename(programs) == "bin" and all(map(os.path.isfile, parts)) else None


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
