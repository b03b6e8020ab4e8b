"""Imports the pending jobs of a `queue.json`, the file in which gpuq kept its queue.

Each pending job becomes a job that `submit` checks. All jobs are inserted in one transaction, and the file
is renamed after the commit. The digest of the file is part of the source of its jobs. If a crash comes
between the commit and the rename, the next import therefore finds the jobs and only renames the file.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from gpu_scheduler.control.line_note import LineNote, Note, NoteKind, line_note_text
from gpu_scheduler.control.new_line import AttributeValues, NewJob, recorded_setting
from gpu_scheduler.control.submit import Submission, check_job, insert_new, inserted_before
from gpu_scheduler.core.jobsfile.attributes import MAX_RETRIES
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.text.formatting import count_noun, safe_text
from gpu_scheduler.core.text.parsing import parse_json, split_words
from gpu_scheduler.errors import UsageError
from gpu_scheduler.show.location import Location
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem

#: The statuses of jobs that are imported, and those of jobs that count as completed.
_PENDING = ("pending", "queued")
_COMPLETED = ("done", "completed")
#: Variables that the scheduler sets for every job.
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_CHARACTERS = 64
#: Maximum number of problems that an error lists.
_MAX_PROBLEMS = 20


class ImportReport(Struct, frozen=True):
    """The result of an import.

    made: the imported jobs; only ids if an earlier import of the file inserted them. notes: those of each
    job. left_out: the number of jobs that were not imported, by status. renamed_to: the new path of the file,
    None if it was not renamed. rename_problem: why it could not be renamed.
    """

    path: str
    made: Submission
    notes: tuple[tuple[LineNote, ...], ...]
    left_out: Mapping[str, int]
    renamed_to: str | None
    rename_problem: str | None


def import_queue(location: Location, path: str) -> ImportReport:
    """Imports the pending jobs of a file. Raises UsageError if a job has a problem; then imports nothing."""
    data = _read(path)
    source = f"import:{hashlib.sha256(data).hexdigest()[:32]}"
    made = inserted_before(location, source)
    entries: list[Entry] = []
    notes: tuple[tuple[LineNote, ...], ...] = ()
    if made is None:
        try:
            entries, problems = parse_queue(data)
        except ValueError as error:
            raise UsageError(f"{path}: {error}; nothing was imported") from None
        made, notes, more = _check(location, entries, is_complete=not problems)
        if problems or more:
            raise _problems_error(path, [*problems, *more])
        if made.jobs:
            made = insert_new(location, made, source)
    renamed, problem = _rename(path, data) if made.ids else (None, None)
    left_out = Counter(entry.status for entry in entries if not entry.is_pending)
    return ImportReport(path, made, notes, left_out, renamed, problem)


def _read(path: str) -> bytes:
    found = safe_file.read(path)
    if isinstance(found, FileProblem):
        remedy = "; copy it to a file that only you can write, and import the copy" if found.remedy else ""
        raise UsageError(f"{path} {found.description}{remedy}; nothing was imported")
    return found.data


def _check(
    location: Location, entries: Sequence[Entry], *, is_complete: bool
) -> tuple[Submission, tuple[tuple[LineNote, ...], ...], list[str]]:
    """Returns the jobs to insert, parents first, their notes, and the problems of all entries.

    is_complete: whether the entries are all jobs of the file, so that their parents can be found.
    """
    recorded, cwd = recorded_setting(location, ""), os.getcwd()
    parents = find_parents(entries) if is_complete else Parents({}, {}, [])
    checked: dict[int, tuple[JobSpec, tuple[LineNote, ...]]] = {}
    problems = []
    for entry in filter(lambda entry: entry.is_pending, entries):
        missing = parents.missing.get(entry.number, ())
        try:
            new, folder, notes = _new_job(entry, cwd, missing)
            spec, _, warnings = check_job(new, os.environ, recorded, folder)
            checked[entry.number] = spec, (*notes, *warnings)
        except (UsageError, ValueError) as error:
            problems.append(f"{entry.label}: {error}")
    problems += parents.problems
    order = () if problems else tuple(parents.waits_for)
    position = {number: index for index, number in enumerate(order)}
    jobs = Submission(
        tuple(checked[number][0] for number in order), None, (),
        after={position[number]: [position[one] for one in parents.waits_for[number]] for number in order},
        held_because={
            position[number]: StateReason(
                ReasonKind.PARENT_NOT_IMPORTED, subject=", ".join(one.label for one in missing)
            )
            for number, missing in parents.missing.items() if number in position
        },
    )  # fmt: skip
    return jobs, tuple(checked[number][1] for number in order), problems


def _problems_error(path: str, problems: Sequence[str]) -> UsageError:
    more = [f"… and {len(problems) - _MAX_PROBLEMS:,} more"] if len(problems) > _MAX_PROBLEMS else []
    listed = "\n".join(f"  {problem}" for problem in chain(problems[:_MAX_PROBLEMS], more))
    return UsageError(
        f"{path}: {count_noun(len(problems), 'problem')}; nothing was imported\n{listed}\n"
        "correct the file, or remove these jobs from it, and import it again"
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


# Parses the file. Nothing outside its text is consulted.


class Entry(Struct, frozen=True):
    """A job of a `queue.json`. number: its position in the file, from 1; given: its keys that are not null.

    Only `id`, `name` and `status` have been checked unless the job is pending.
    """

    number: int
    given: Mapping[str, Any]

    @property
    def id(self) -> int:
        """Its `id` or, without that key, its position."""
        found: int = self.given.get("id", self.number)
        return found

    @property
    def name(self) -> str | None:
        """Its name; None if it has none."""
        return self.given.get("name") or None

    @property
    def status(self) -> str:
        """Its status in lower case."""
        return str(self.given.get("status", "pending")).lower()

    @property
    def is_pending(self) -> bool:
        """True if the job is imported."""
        return self.status in _PENDING

    @property
    def label(self) -> str:
        """The position and the name, for messages: "job 2 (eval)"."""
        return f"job {self.number}" if self.name is None else f"job {self.number} ({self.name})"


def parse_queue(data: bytes) -> tuple[list[Entry], list[str]]:
    """Returns the jobs of a `queue.json` and the problems of those that are pending.

    A job with a problem is left out. Raises ValueError if the text is not a queue.
    """
    value = parse_json(data)
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise ValueError('not a queue, which is an object with a list of jobs: {"jobs": […]}')
    entries, problems = [], []
    seen: dict[int, Entry] = {}
    for number, job in enumerate(jobs, 1):
        try:
            entries.append(entry := _parse_entry(number, job))
        except ValueError as error:
            problems.append(str(error))
            continue
        if seen.setdefault(entry.id, entry) is not entry:
            problems.append(f"{entry.label} has the id {entry.id} of {seen[entry.id].label}")
    return entries, problems


def _parse_entry(number: int, job: object) -> Entry:
    """Parses one job. Raises ValueError with all problems of the job."""
    if not isinstance(job, dict):
        raise ValueError(f"job {number} is not an object")
    given = {key: value for key, value in job.items() if value is not None and key not in _UNUSED}
    wrong = {key: problem for key, value in given.items() if (problem := _problem(key, value)) is not None}
    entry = Entry(number, {key: value for key, value in given.items() if key not in wrong})
    if not entry.is_pending:
        wrong = {key: problem for key, problem in wrong.items() if key in ("id", "name")}
    elif not given.get("script"):
        wrong["script"] = "script is missing"
    if wrong:
        raise ValueError(f"{entry.label}: {'; '.join(wrong.values())}")
    return entry


_Count = Annotated[int, Meta(ge=0, le=10**9)]
_Id = Annotated[int, Meta(ge=1, le=10**9)]
_Reference = _Id | Annotated[str, Meta(min_length=1)]
#: What each key of a job must be: the type, and the accepted values in words.
_KEYS: Mapping[str, tuple[Any, str]] = {
    "id": (_Id, "a whole number above 0"),
    "name": (str, "a text"),
    "script": (str, "a path"),
    "args": (str | list[str], "a list of texts, or one text with balanced quotes"),
    "python": (str, "a program or a path"),
    "cwd": (str, "a path"),
    "env": (dict[str, str], "an object whose values are texts"),
    "status": (str, "a text"),
    "after": (_Reference | list[_Reference], "an id, a name, a list of these, or null"),
    "retries": (Annotated[int, Meta(ge=0, le=MAX_RETRIES)], f"a whole number from 0 to {MAX_RETRIES}"),
    "attempt": (_Count, "a whole number"),
}
#: Keys that describe earlier runs of a job.
_UNUSED = frozenset({"pid", "added_at", "started_at", "finished_at", "exit_code", "log_file"})


def _problem(key: str, value: object) -> str | None:
    if key not in _KEYS:
        return f"key {json.dumps(key)} is unknown; known: {', '.join(_KEYS)}"
    accepted, form = _KEYS[key]
    try:
        convert(value, accepted)
        if key == "args" and isinstance(value, str):
            split_words(value)
    except ValueError:  # msgspec.ValidationError is one, too
        return f"{key} must be {form}, not {json.dumps(value)[:80]}"
    return None


# Finds the parents of the pending jobs.


class Parents(Struct, frozen=True):
    """The parents of the pending jobs, as positions in the file.

    waits_for: the pending parents of each pending job, with parents before their children and otherwise in
    the order of the file; missing: the parents that neither completed nor are pending, for each job that has
    any; problems: references that name no job or several jobs, and jobs that wait for themselves.
    """

    waits_for: Mapping[int, Sequence[int]]
    missing: Mapping[int, Sequence[Entry]]
    problems: Sequence[str]


def find_parents(entries: Sequence[Entry]) -> Parents:
    """Returns the parents of the pending jobs."""
    meant: dict[int | str, list[Entry]] = {}
    for entry in entries:
        meant.setdefault(entry.id, []).append(entry)
        meant.setdefault(entry.name or "", []).append(entry)
    waits_for: dict[int, list[int]] = {}
    missing: dict[int, list[Entry]] = {}
    problems = []
    for entry in filter(lambda entry: entry.is_pending, entries):
        found: dict[int, Entry] = {}
        after = entry.given.get("after", ())
        for reference in after if isinstance(after, (list, tuple)) else (after,):
            try:
                parent = _parent(reference, meant)
                found[parent.number] = parent
            except ValueError as error:
                problems.append(f"{entry.label}: {error}")
        waits_for[entry.number] = [number for number, parent in found.items() if parent.is_pending]
        lost = [one for one in found.values() if not one.is_pending and one.status not in _COMPLETED]
        if lost:
            missing[entry.number] = lost
    try:
        order = _parents_first(waits_for)
    except CycleError as error:
        listed = ", ".join(map(str, sorted(set(error.args[1]))))
        problems.append(f"`after` makes these jobs wait for themselves: {listed}")
        order = []
    return Parents({number: waits_for[number] for number in order}, missing, problems)


def _parent(reference: int | str, meant: Mapping[int | str, Sequence[Entry]]) -> Entry:
    """Returns the job with this id or name; a text of digits is an id first. Raises ValueError."""
    number = int(reference) if isinstance(reference, int) or reference.isdecimal() else ""
    found = (number and meant.get(number)) or meant.get(str(reference), ())
    if not found:
        raise ValueError(
            f"after {reference}: the file has no such job; if gpuq has cleared it, remove it from `after`"
        )
    if len(found) > 1:
        same = ", ".join(str(entry.id) for entry in found)
        raise ValueError(f"after {reference}: the jobs {same} have this name; give one of these ids")
    return found[0]


def _parents_first(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns the jobs in the order of the file, but each after its parents. Raises CycleError."""
    sorter = TopologicalSorter(waits_for)
    sorter.prepare()
    ready, order = sorted(sorter.get_ready()), list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
    return order


# Turns a pending job of the file into the job that runs its script.


def _new_job(entry: Entry, cwd: str, missing: Sequence[Entry]) -> tuple[NewJob, str, list[Note]]:
    """Returns the job, its folder, and notes on what is different. Raises ValueError with all its problems.

    cwd: the folder for relative paths, and the working folder of an entry that names none. missing: the
    parents for which the job is held.
    """
    given = entry.given
    folder, script = _absolute(given.get("cwd") or ".", cwd), os.path.expanduser(given["script"])
    program, venv = given.get("python") or "python3", None
    if "/" in program:
        program = _absolute(program, folder)
    problems = list(_problems(folder, _absolute(script, folder), program))
    if problems:
        raise ValueError("; ".join(problems))
    if "/" in program and (venv := _virtual_environment(program)) is not None:
        program = os.path.basename(program)
    args = given.get("args", ())
    env = given.get("env", {})
    retries = max(0, given.get("retries", 0) - given.get("attempt", 0))  # an interrupted job has used some
    attributes: dict[str, str | bool | Sequence[str] | None] = {
        # Names may not contain all characters.
        "name": _NOT_IN_NAMES.sub("-", entry.name or "").strip("-")[:_MAX_NAME_CHARACTERS],
        "venv": venv,
        "fail-retries": str(retries) if retries else None,
        "hold": bool(missing),
        "env": [f"{key}={value}" for key, value in env.items() if key not in _OWN_VARIABLES],
    }
    set_ones: AttributeValues = {key: value for key, value in attributes.items() if value}
    words = split_words(args) if isinstance(args, str) else args
    # The interpreter would mistake a script that begins with `-` for an option.
    command = (program, "-u", f"./{script}" if script.startswith("-") else script, *words)
    notes = [
        Note(NoteKind.PARENT_NOT_IMPORTED, {"parent": parent.label, "status": parent.status})
        for parent in missing
    ]
    notes += [
        Note(NoteKind.VARIABLE_IGNORED, {"name": name, "value": env[name]})
        for name in _OWN_VARIABLES
        if name in env
    ]
    return NewJob(command=command, attributes=set_ones), folder, notes


def _absolute(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def _problems(folder: str, script: str, program: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        yield f"the working folder {folder} does not exist"
    elif not os.path.isfile(script):
        yield f"script {script} {'is not a file' if os.path.exists(script) else 'does not exist'}"
    if "/" in program and not (os.path.isfile(program) and os.access(program, os.X_OK)):
        yield f"the interpreter {program} does not exist or is not executable"


def _virtual_environment(python: str) -> str | None:
    """Returns the virtual environment to which an interpreter belongs; None if it belongs to none."""
    programs, root = os.path.dirname(python), os.path.dirname(os.path.dirname(python))
    parts = (f"{root}/pyvenv.cfg", f"{root}/bin/activate")
    return root if os.path.basename(programs) == "bin" and all(map(os.path.isfile, parts)) else None


#: Up to this many imported jobs get a line each.
_MAX_LINES = 20


def import_text(report: ImportReport) -> str:
    """Formats the imported jobs, the jobs that were left out, and the new name of the file."""
    return "".join(f"{safe_text(line)}\n" for line in _import_lines(report))


def _import_lines(report: ImportReport) -> Iterator[str]:
    path, made = report.path, report.made
    if made.ids and not made.jobs:
        yield f"{path} was imported before as {_ids(made.ids)}; nothing was imported again"
    elif not made.jobs:
        yield f"{path} has no pending jobs; nothing was imported"
    elif len(made.jobs) > _MAX_LINES:
        yield f"imported {_ids(made.ids)} from {path}"
    else:
        for job_id, job in zip(made.ids, made.jobs, strict=True):
            after = f" (after {', '.join(job.after)})" if job.after else ""
            yield f"job {job_id}: {f'{job.name}: ' if job.name else ''}{job.text}{after}"
    if report.left_out:
        counts = ", ".join(f"{number:,} {status}" for status, number in sorted(report.left_out.items()))
        yield f"not imported, because only pending jobs are: {counts}"
    if report.renamed_to is not None:
        yield f"{path} is now {report.renamed_to}"
    if made.jobs and not made.is_scheduler_up:
        yield "no scheduler is running; `start` runs the jobs"


def _ids(ids: tuple[int, ...]) -> str:
    """Formats ids that are in ascending order, such as "jobs 4-6"."""
    if len(ids) == 1:
        return f"job {ids[0]}"
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"jobs {ids[0]}-{ids[-1]}"
    return f"{count_noun(len(ids), 'job')} from {ids[0]} to {ids[-1]}"


def import_warnings(report: ImportReport) -> Iterator[str]:
    """Yields the warnings about the imported jobs, and why the file was not renamed."""
    if report.made.jobs:
        for job_id, notes in zip(report.made.ids, report.notes, strict=True):
            yield from (f"job {job_id}: {line_note_text(note)}" for note in notes)
    if report.rename_problem is not None:
        yield (
            f"{report.path} was imported but not renamed: {report.rename_problem}; rename it yourself"
            " (as long as it is unchanged, it is not imported again)"
        )
