"""Submits jobs straight into the store, without a jobs file. Creates the store if there is none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpu_scheduler.app.answers import SUBMIT
from gpu_scheduler.app.line_note import LineNote, Note, NoteKind
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.named_parents import resolve_parents
from gpu_scheduler.app.new_line import (
    AttributeValues,
    NewWork,
    attribute_items,
    check_single_line,
    compose_line,
    job_warnings,
    parse_new_line,
)
from gpu_scheduler.app.recorded_setting import RecordedSetting, recorded_setting
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
class NewJob(NewWork):
    """The values of a job. python: the interpreter for a script; None means that of its environment."""

    python: str | None = None


@dataclass(frozen=True)
class Submission:
    """The submitted jobs, without their secrets.

    ids: empty if the jobs were only to be shown. venv: the virtual environment that was found above their
    folder, if they use it. warnings: why they may not run as intended. data_dir: the folder of the store.
    """

    jobs: tuple[JobSpec, ...]
    venv: str | None
    warnings: tuple[LineNote, ...]
    ids: tuple[int, ...] = ()
    data_dir: str = ""
    is_store_new: bool = False
    is_scheduler_up: bool = False


def submit(
    location: Location,
    jobs: Sequence[NewJob],
    variables: Mapping[str, str],
    on_submitted: Callable[[Submission], None],
    *,
    is_dry_run: bool = False,
) -> None:
    """Checks everything, then inserts the jobs in one transaction and wakes the scheduler.

    variables: the environment that the jobs inherit. on_submitted: called once the jobs are in the store;
    until it returns, Ctrl-C is deferred, so that no job is submitted without it. is_dry_run: whether nothing
    is inserted. Raises UsageError for a wrong value; then nothing was submitted.
    """
    recorded = recorded_setting(location, "")
    try:
        paths = {"--state-file": location.state_file, "--data-dir": location.data_dir}
        check_encoding({"the working folder": os.getcwd(), **paths})
        checked = [_checked(new, variables, recorded) for new in jobs]
        specs, venvs, notes = zip(*checked, strict=True)
        submission = Submission(specs, venvs[0], tuple(chain.from_iterable(notes)))
        if is_dry_run:
            on_submitted(without_secrets(submission))
        else:
            _insert(location, submission, variables, on_submitted)
    except UsageError as error:
        raise UsageError(f"{error}; nothing was submitted") from None


def _checked(
    new: NewJob, variables: Mapping[str, str], recorded: RecordedSetting
) -> tuple[JobSpec, str | None, tuple[LineNote, ...]]:
    """Returns the job, the virtual environment that was found for it, and the warnings."""
    _check_values(new)
    command = _command(new, variables)
    check_single_line([command.text])
    line = compose_line(lambda: format_command_line(attribute_items(command.attributes), [command.text]))
    spec, notes = parse_new_line(line, os.getcwd(), recorded.known_gpus)
    return spec, command.venv, (*notes, *command.notes, *job_warnings(recorded, spec))


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
    read, notes = sbatch_attributes(script, folder, new.attributes, new.arguments)
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
    submission: Submission,
    variables: Mapping[str, str],
    on_submitted: Callable[[Submission], None],
) -> None:
    jobs = submission.jobs
    # The parents of a job are in an existing store.
    is_new = not any(one.after or one.after_any for one in jobs) and create_missing_store(location)
    with open_store(location) as store, interrupts_deferred():
        refuse_copy(store)
        with store.db.transaction():
            # All parents are found first, so that no job of a grid waits for another one.
            parents = [resolve_parents(store, one) for one in jobs]
            environment = add_environment(store, variables)
            ids = tuple(
                store.insert_job(spec, SUBMIT, dependencies=found.dependencies, environment=environment)
                for spec, found in zip(jobs, parents, strict=True)
            )
        store.data_dir.ring_doorbell()
        submission = replace(
            submission,
            ids=ids,
            warnings=(*submission.warnings, *chain.from_iterable(one.notes for one in parents)),
            data_dir=str(store.data_dir.folder),
            is_store_new=is_new,
            is_scheduler_up=scheduler_pid_of(store) is not None,
        )
        on_submitted(without_secrets(submission))
