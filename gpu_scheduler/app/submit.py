"""Submits a job straight into the store, without a jobs file. Creates the store if there is none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.app.answers import SUBMIT
from gpu_scheduler.app.line_note import LineNote, Note, NoteKind
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.named_parents import resolve_parents
from gpu_scheduler.app.new_line import (
    AttributeValues,
    attribute_items,
    check_single_line,
    compose_line,
    job_warnings,
    parse_new_line,
)
from gpu_scheduler.app.recorded_setting import recorded_setting
from gpu_scheduler.app.script_command import (
    default_python,
    find_python,
    is_python,
    is_trusted,
    nearest_venv,
    sbatch_attributes,
    script_command,
    script_path,
)
from gpu_scheduler.app.store_access import create_missing_store, open_store, scheduler_pid_of
from gpu_scheduler.core.jobsfile.compose import format_command_line
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.errors import UsageError
from gpu_scheduler.store.environments import add_environment
from gpu_scheduler.store.location import refuse_copy
from gpu_scheduler.store.new_store import check_encoding
from gpu_scheduler.system.interrupts import interrupts_deferred

#: The attributes that choose the environment of a job.
_ENVIRONMENTS = frozenset({"conda", "venv"})


@dataclass(frozen=True)
class NewJob:
    """The values of a job: a script with its arguments, or the words of a command.

    python: the interpreter for a Python script; None means that of the job's environment.
    """

    script: str | None = None
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    python: str | None = None
    attributes: AttributeValues = field(default_factory=dict)


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job, without its secrets.

    text: its command. venv: the virtual environment that was found above its folder, if the job uses it.
    warnings: why it may not run as intended. data_dir: the folder of the store.
    """

    id: int
    text: str
    venv: str | None
    warnings: tuple[LineNote, ...]
    data_dir: str
    is_store_new: bool
    is_scheduler_up: bool


def submit(
    location: Location,
    new: NewJob,
    variables: Mapping[str, str],
    on_submitted: Callable[[SubmittedJob], None],
) -> None:
    """Checks everything, then inserts the job and wakes the scheduler.

    variables: the environment that the job inherits. on_submitted: called once the job is in the store; until
    it returns, Ctrl-C is deferred, so that no job is submitted without it. Raises UsageError for a wrong
    value; then nothing was submitted.
    """
    recorded = recorded_setting(location, "")
    try:
        paths = {"--state-file": location.state_file, "--data-dir": location.data_dir}
        check_encoding({"the working folder": os.getcwd(), **paths})
        _check_values(new)
        command = _command(new, variables)
        check_single_line([command.text])
        line = compose_line(lambda: format_command_line(attribute_items(command.attributes), [command.text]))
        spec, notes = parse_new_line(line, os.getcwd(), recorded.known_gpus)
        warnings = (*notes, *command.notes, *job_warnings(recorded, spec))
        _insert(location, spec, variables, command.venv, warnings, on_submitted)
    except UsageError as error:
        raise UsageError(f"{error}; nothing was submitted") from None


def _check_values(new: NewJob) -> None:
    """Raises UsageError for an empty value, which may come from a variable that is not set in a script."""
    empty = next((key for key, value in new.attributes.items() if value == ""), None)
    if empty is not None:
        raise UsageError(f"--{empty}: the value is empty; give a value, or leave out the option")


@dataclass(frozen=True)
class _Command:
    """The shell text and the attributes of a job. venv: the virtual environment that was found for it."""

    text: str
    attributes: AttributeValues
    venv: str | None = None
    notes: tuple[Note, ...] = ()


def _command(new: NewJob, variables: Mapping[str, str]) -> _Command:
    """Returns the command of a new job. Raises UsageError if its script cannot be run."""
    if new.script is None:
        # A single word is shell text.
        text = new.command[0] if len(new.command) == 1 else shlex.join(new.command)
        return _Command(text, new.attributes)
    folder = os.path.abspath(os.path.expanduser(str(new.attributes.get("cwd", ""))))
    script = script_path(new.script, folder)
    python = None if new.python is None else find_python(new.python, variables)
    read, notes = sbatch_attributes(script, folder, new.attributes)
    attributes: AttributeValues = {**read, **new.attributes}
    venv: str | None = None
    if python is None and is_python(script, python):
        if not _ENVIRONMENTS & attributes.keys():
            venv, more = _found_venv(folder)
            notes += more
        if venv is not None:
            attributes = {**attributes, "venv": venv}
        python = "python" if _ENVIRONMENTS & attributes.keys() else default_python(variables)
    words = script_command(script, folder, python)
    return _Command(shlex.join([*words, *new.arguments]), attributes, venv, notes)


def _found_venv(folder: str) -> tuple[str | None, tuple[Note, ...]]:
    """Returns the nearest virtual environment; None, with a note, if another user could have planted it."""
    venv = nearest_venv(folder)
    if venv is None:
        return None, ()
    if not is_trusted(venv):
        return None, (Note(NoteKind.VENV_OF_OTHER_USER, {"path": str(venv)}),)
    return str(venv), ()


def _insert(
    location: Location,
    spec: JobSpec,
    variables: Mapping[str, str],
    venv: str | None,
    warnings: tuple[LineNote, ...],
    on_submitted: Callable[[SubmittedJob], None],
) -> None:
    # The parents of a job are in an existing store.
    is_new = not (spec.after or spec.after_any) and create_missing_store(location)
    with open_store(location) as store, interrupts_deferred():
        refuse_copy(store)
        with store.db.transaction():
            parents = resolve_parents(store, spec)
            environment = add_environment(store, variables)
            job_id = store.insert_job(
                spec, SUBMIT, dependencies=parents.dependencies, environment=environment
            )
        store.data_dir.ring_doorbell()
        submitted = SubmittedJob(
            job_id,
            spec.text,
            venv,
            (*warnings, *parents.notes),
            str(store.data_dir.folder),
            is_new,
            scheduler_pid_of(store) is not None,
        )
        on_submitted(without_secrets(submitted))
