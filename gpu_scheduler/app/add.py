"""Appends one line to a jobs file. The other lines belong to the user and are neither read nor changed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_scheduler.app.current_need import current_llm_config
from gpu_scheduler.app.line_note import LineNote, Note, NoteKind
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.masking import without_secrets
from gpu_scheduler.app.preview import PreviewContext, preview
from gpu_scheduler.app.recorded_setting import RecordedSetting, recorded_setting
from gpu_scheduler.app.store_access import open_store
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP
from gpu_scheduler.core.jobsfile.compose import format_command_line, format_script_line
from gpu_scheduler.core.model.gpu_list import parse_gpu_list
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.bash_check import job_shell
from gpu_scheduler.intake.submit import parse_job_line
from gpu_scheduler.store.job_lists import newest_job_facts


@dataclass(frozen=True)
class NewLine:
    """The values of a line: a script with its arguments, or the words of a command.

    conda: the environment; None means base for a script and no environment for a command. gpus: the GPUs
    that the job may use, written as in a jobs file. attributes: the value of each key; a flag has the value
    True, and `env` has a list of variables.
    """

    script: str | None = None
    arguments: str = ""
    command: Sequence[str] = ()
    conda: str | None = None
    priority: int = 0
    gpus: str = ""
    attributes: Mapping[str, str | bool | Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class AddedLine:
    """A line that was appended, or that could be. warnings: why its job may not run as intended."""

    line: str
    warnings: tuple[LineNote, ...]


def add(location: Location, new: NewLine, path: str) -> AddedLine:
    """Checks everything, then appends the line to a jobs file. Raises UsageError for a wrong value."""
    added = _check(location, new, os.path.abspath(path))
    append_line(path, added.line)
    return without_secrets(added)


def compose(location: Location, new: NewLine) -> AddedLine:
    """Returns the line that `add` would append to a jobs file in this folder. Its secrets are not hidden."""
    return _check(location, new, None)


def _check(location: Location, new: NewLine, path: str | None) -> AddedLine:
    recorded = recorded_setting(location, path or "")
    if new.script is None:
        line = _command_line(new, recorded, path)
    else:
        line = _script_line(new, new.script, recorded.known_gpus)
    spec, notes = _parse_line(line, recorded.cwd or os.getcwd(), recorded.known_gpus)
    found = (*_duplicate_notes(location, spec), *_watch_notes(recorded, path), *_warnings(recorded, spec))
    return AddedLine(line, (*notes, *found))


def _script_line(new: NewLine, given: str, known_gpus: frozenset[int] | None) -> str:
    script = os.path.abspath(os.path.expanduser(given) if given.startswith("~/") else given)
    if not os.path.isfile(script):
        what = "is not a file" if os.path.exists(script) else "does not exist"
        raise UsageError(f"SCRIPT {given}: {script} {what}; nothing was added")
    allowed = _allowed_gpus(new, known_gpus)
    return _compose_line(
        lambda: format_script_line(
            script, new.conda or None, new.arguments, new.priority, allowed, _attribute_items(new)
        )
    )


def _command_line(new: NewLine, recorded: RecordedSetting, path: str | None) -> str:
    """Returns the line for a command that runs in the current folder.

    The line names that folder if the lines of the jobs file run in another folder, or are likely to.
    """
    here = os.getcwd()
    likely = here if path is None else os.path.dirname(path)
    items = [f"priority={new.priority}", *_attribute_items(new)]
    if new.conda:
        items.append(f"conda={new.conda}")
    if _allowed_gpus(new, recorded.known_gpus) is not None:
        items.append(f"allowed={new.gpus}")
    if "cwd" not in new.attributes and (recorded.cwd or likely) != here:
        items.append(f"cwd={here}")
    return _compose_line(lambda: format_command_line(items, new.command))


def _attribute_items(new: NewLine) -> list[str]:
    """Returns the items of the attribute block in a fixed order, with absolute paths."""
    items: list[str] = []
    for key in ATTRIBUTE_HELP:
        value = new.attributes.get(key)
        if value is True:
            items.append(key)
        elif isinstance(value, str):
            if value:
                is_path = key in ("venv", "cwd")
                items.append(f"{key}={os.path.abspath(os.path.expanduser(value)) if is_path else value}")
        elif value:
            items += [f"{key}:{one}" for one in value]
    return items


def _allowed_gpus(new: NewLine, known_gpus: frozenset[int] | None) -> tuple[int, ...] | None:
    try:
        return parse_gpu_list(new.gpus, known_gpus)
    except ValueError as error:
        raise UsageError(f"--gpus {new.gpus}: {error}; nothing was added") from None


def _compose_line(compose: Callable[[], str]) -> str:
    try:
        line = compose()
    except ValueError as error:
        raise UsageError(f"these values do not form a valid line: {error}; nothing was added") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{line!r} cannot be encoded in UTF-8; nothing was added") from None
    return line


def _parse_line(line: str, cwd: str, known_gpus: frozenset[int] | None) -> tuple[JobSpec, list[str]]:
    """Parses the line as the scheduler does; returns its job and, for a command, the parser's notes."""
    try:
        spec, notes = parse_job_line(line, cwd, known_gpus)
    except ValueError as error:
        raise UsageError(f"{line}: {error}; nothing was added") from None
    return spec, list(notes) if spec.kind == "command" else []


def _warnings(recorded: RecordedSetting, spec: JobSpec) -> Iterator[LineNote]:
    """Yields the warnings that `lint` gives for the job."""
    started = recorded.options
    conda_sh = (started and started.conda_sh) or find_conda_sh(os.environ, os.path.exists)
    if conda_sh is None:
        spec = replace(spec, conda=None)  # no warning: the scheduler's machine may have conda
    context = PreviewContext(
        LlmConfig() if started is None else current_llm_config(started),
        recorded.known_gpus,
        conda_sh,
        os.path.exists,
        _conda_environments(conda_sh, spec.conda) if conda_sh and spec.conda else None,
        recorded.totals_mib,
        started or Limits(),
        job_shell(os.environ),
    )
    yield from preview(0, spec, (), None, context).warnings


def _conda_environments(conda_sh: str, name: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails.

    Asking conda takes a second. This is not necessary if the environment is in its usual place.
    """
    if name == "base" or (Path(conda_sh).parents[2] / "envs" / name).is_dir():
        return [name]
    from gpu_scheduler.health.doctor.conda import known_environments

    return known_environments(conda_sh)


def _duplicate_notes(location: Location, spec: JobSpec) -> list[Note]:
    """Returns a note if a job with the line's identity already exists; none if the store is unreadable."""
    if spec.kind != "csv":
        return []  # adding a command always creates a new job
    try:
        with open_store(location, read_only=True) as store:
            job = newest_job_facts(store, [spec.identity]).get(spec.identity)
    except SchedulerError:
        return []
    if job is None:
        return []
    if job.state is not JobState.FINISHED:
        return [Note(NoteKind.JOB_EXISTS, {"job": job.job_id, "state": job.state})]
    if job.outcome is Outcome.COMPLETED:
        return [Note(NoteKind.JOB_COMPLETED, {"job": job.job_id})]
    return []


def _watch_notes(recorded: RecordedSetting, path: str | None) -> list[Note]:
    """Returns a note if the running scheduler does not watch this file."""
    if path is None or recorded.scheduler_pid is None or recorded.options is None:
        return []
    watched = recorded.options.jobs_file
    if watched and os.path.abspath(watched) == path:
        return []
    data = {"path": path, "scheduler_pid": recorded.scheduler_pid, "watched": watched}
    return [Note(NoteKind.NOT_WATCHED, data)]


def append_line(path: str, line: str) -> None:
    """Appends a line to a file in a single write under the file's lock; creates the file if it is missing.

    If the last line has no newline, one is added first. Raises SchedulerError if the file cannot be written.
    """
    try:
        fd = _open_locked(path)
        try:
            size = os.fstat(fd).st_size
            begun = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if begun else b"") + line.encode() + b"\n"
            written = os.write(fd, data)
            if written < len(data):
                os.ftruncate(fd, size)
                raise OSError(f"only {written} of {len(data)} bytes were written")
        finally:
            os.close(fd)
    except OSError as error:
        raise SchedulerError(
            f"{path} cannot be written: {error.strerror or error}; nothing was added"
        ) from None


def _open_locked(path: str) -> int:
    """Opens the file at `path` and locks it against other `add` commands; returns its descriptor."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # An editor may have replaced the file while `flock` waited.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
