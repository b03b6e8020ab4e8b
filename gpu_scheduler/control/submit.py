"""Submits jobs straight into the store, without a jobs file. Creates the store if there is none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.control.attribute_changes import resolve_parents
from gpu_scheduler.control.line_note import LineNote, Note, NoteKind
from gpu_scheduler.control.new_line import (
    AttributeValues,
    NewJob,
    RecordedSetting,
    attribute_items,
    check_single_line,
    compose_line,
    default_python,
    find_python,
    is_python,
    is_trusted,
    job_warnings,
    nearest_venv,
    nothing_is,
    parse_new_line,
    recorded_setting,
    sbatch_attributes,
    script_command,
    script_path,
)
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.job import SUBMIT
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.reasons import StateReason, WaitKind, WaitReason
from gpu_scheduler.errors import StoreNotFoundError, UsageError
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.store.job_lists import job_ids_of_source
from gpu_scheduler.store.new_store import check_encoding
from gpu_scheduler.store.requests import SubmissionKey, add_environment, record_submission, recorded_answer
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import TakenItem, add_item

_Result = TypeVar("_Result")
#: The attributes that choose the environment of a job.
_ENVIRONMENTS = frozenset({"conda", "venv"})


class Submission(Struct, frozen=True):
    """Jobs that were checked and, if they have ids, submitted.

    venv: the virtual environment that was found above their folder, if they use it. warnings: why they may
    not run as intended. data_dir: the folder of the store. after: the positions of earlier jobs of these that
    a job waits for, and held_because: why a job is held, by the position of the job.
    """

    jobs: tuple[JobSpec, ...]
    venv: str | None
    warnings: tuple[LineNote, ...]
    ids: tuple[int, ...] = ()
    data_dir: str = ""
    is_store_new: bool = False
    is_scheduler_up: bool = False
    after: Mapping[int, Sequence[int]] = field(default_factory=dict)
    held_because: Mapping[int, StateReason] = field(default_factory=dict)


def check_jobs(
    location: Location, jobs: Sequence[NewJob], variables: Mapping[str, str], cwd: str
) -> Submission:
    """Returns the jobs as `insert_jobs` takes them. Changes nothing.

    variables: the environment whose PATH the jobs use. cwd: the absolute folder of relative paths. Raises
    UsageError for a wrong value.
    """
    recorded = recorded_setting(location, "")
    with nothing_is("submitted"):
        check_encoding({"--state-file": location.state_file, "--data-dir": location.data_dir})
        checked = [check_job(new, variables, recorded, cwd) for new in jobs]
    specs, venvs, notes = zip(*checked, strict=True)
    return Submission(specs, venvs[0], tuple(chain.from_iterable(notes)))


def insert_jobs(
    location: Location, checked: Submission, environment: Mapping[str, str] | None, source: str = SUBMIT
) -> Submission:
    """Inserts jobs in one transaction and wakes the scheduler. Returns them with their ids.

    environment: the variables that the jobs inherit; None for those of the scheduler. Raises UsageError if a
    job waits for one that does not exist; then nothing was submitted.
    """
    return _insert(location, checked, environment, source, lambda store: None, lambda store, made: made)


def insert_once(
    location: Location,
    checked: Submission,
    source: str,
    key: SubmissionKey,
    answer: Callable[[Submission], str],
) -> str:
    """Inserts jobs with the scheduler's environment unless jobs with this key were inserted before.

    Returns what `answer` returned for the first ones. Raises KeyReusedError for a key of other jobs.
    """

    def record(store: Store, submission: Submission) -> str:
        text = answer(submission)
        record_submission(store, key, submission.ids[0], text)
        return text

    return _insert(location, checked, None, source, lambda store: recorded_answer(store, key), record)


def insert_new(location: Location, checked: Submission, source: str) -> Submission:
    """Inserts jobs with the scheduler's environment unless this source has jobs; see `inserted_before`."""
    return _insert(
        location, checked, None, source, lambda store: _inserted(store, source), lambda store, made: made
    )


def inserted_before(location: Location, source: str) -> Submission | None:
    """Returns the ids of the jobs of a source, without the jobs; None if there are none."""
    try:
        with open_store(location, read_only=True) as store:
            return _inserted(store, source)
    except StoreNotFoundError:
        return None


def _inserted(store: Store, source: str) -> Submission | None:
    ids = tuple(job_ids_of_source(store, source))
    return Submission((), None, (), ids) if ids else None


def insert_gated(
    location: Location, checked: Submission, source: str, item: Callable[[int], TakenItem]
) -> int:
    """Inserts a job that waits for the confirmation of a Redis queue, with its item. Returns the job's id.

    item: returns the item for the job's id.
    """

    def record(store: Store, made: Submission) -> int:
        add_item(store, item(made.ids[0]))
        return made.ids[0]

    gate = WaitReason(WaitKind.NOT_CONFIRMED)
    return _insert(location, checked, None, source, lambda store: None, record, gate)


def answer_to(location: Location, key: SubmissionKey) -> str | None:
    """Returns the answer to the first submission with this key; None if there was none in the last day."""
    try:
        with open_store(location, read_only=True) as store:
            return recorded_answer(store, key)
    except StoreNotFoundError:
        return None


def check_job(
    new: NewJob, variables: Mapping[str, str], recorded: RecordedSetting, cwd: str
) -> tuple[JobSpec, str | None, tuple[LineNote, ...]]:
    """Returns the job, the virtual environment that was found for it, and the warnings.

    Raises UsageError for a wrong value.
    """
    check_encoding({"the working folder": cwd})
    # An empty value may come from a variable that is not set in a script.
    empty = next((key for key, value in new.attributes.items() if value == ""), None)
    if empty is not None:
        raise UsageError(f"--{empty}: the value is empty; give a value, or leave out the option")
    command = _command(new, variables, cwd)
    check_single_line([command.text])
    items = attribute_items(command.attributes, cwd)
    line = compose_line(lambda: format_command_line(items, [command.text]))
    spec, notes = parse_new_line(line, cwd, recorded.known_gpus)
    return spec, command.venv, (*notes, *command.notes, *job_warnings(recorded, spec))


class _Command(Struct, frozen=True):
    """The shell text and the attributes of a job. venv: the virtual environment that was found for it."""

    text: str
    attributes: AttributeValues
    venv: str | None = None
    notes: tuple[Note, ...] = ()


def _command(new: NewJob, variables: Mapping[str, str], cwd: str) -> _Command:
    """Returns the command of a new job. Raises UsageError if its script cannot be run."""
    if new.script is None:
        # A single word is shell text.
        text = new.command[0] if len(new.command) == 1 else shlex.join(new.command)
        return _Command(text, new.attributes)
    folder = os.path.abspath(os.path.join(cwd, os.path.expanduser(str(new.attributes.get("cwd", "")))))
    script = script_path(new.script, folder)
    python = None if new.python is None else find_python(new.python, variables)
    read, notes = sbatch_attributes(script, folder, new.attributes, new.arguments)
    attributes: AttributeValues = {**read, **new.attributes}
    venv: str | None = None
    if python is None and is_python(script, python):
        found = None if _ENVIRONMENTS & attributes.keys() else nearest_venv(folder)
        if found is not None and is_trusted(found):
            venv = str(found)
            attributes = {**attributes, "venv": venv}
        elif found is not None:  # another user could have planted it
            notes += (Note(NoteKind.VENV_OF_OTHER_USER, {"path": str(found)}),)
        python = "python" if _ENVIRONMENTS & attributes.keys() else default_python(variables)
    words = script_command(script, folder, python)
    return _Command(shlex.join([*words, *new.arguments]), attributes, venv, notes)


def _insert(
    location: Location,
    submission: Submission,
    variables: Mapping[str, str] | None,
    source: str,
    find: Callable[[Store], _Result | None],
    finish: Callable[[Store, Submission], _Result],
    gate: WaitReason | None = None,
) -> _Result:
    """Inserts the jobs unless `find` returns something, and returns this or what `finish` returns.

    All of this is one transaction.
    """
    jobs = submission.jobs
    # The parents of a job are in an existing store.
    is_new = not any(one.after or one.after_any for one in jobs) and create_missing_store(location)
    with open_store(location) as store, nothing_is("submitted"):
        with store.db.transaction():
            known = find(store)
            if known is not None:
                return known
            # All parents are found first, so that no job of a grid waits for another one.
            parents = [resolve_parents(store, one.attributes) for one in jobs]
            environment = None if variables is None else add_environment(store, variables)
            made: list[tuple[int, JobSpec]] = []
            for number, (spec, found) in enumerate(zip(jobs, parents, strict=True)):
                inner = [made[position][0] for position in submission.after.get(number, ())]
                edges = [Dependency(parent, DependencyKind.COMPLETED, str(parent)) for parent in inner]
                spec = replace(spec, after=(*spec.after, *map(str, inner)))
                job_id = store.insert_job(
                    spec, source, dependencies=(*found.dependencies, *edges), environment=environment,
                    held_because=submission.held_because.get(number), gate=gate,
                )  # fmt: skip
                made.append((job_id, spec))
            submission = replace(
                submission,
                jobs=tuple(spec for _, spec in made),
                ids=tuple(job_id for job_id, _ in made),
                warnings=(*submission.warnings, *chain.from_iterable(one.notes for one in parents)),
                data_dir=str(store.data_dir.folder),
                is_store_new=is_new,
                is_scheduler_up=scheduler_pid_of(store) is not None,
            )
            result = finish(store, submission)
        store.data_dir.ring_doorbell()
        return result
