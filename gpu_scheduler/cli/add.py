"""`add`: appends one line to a jobs file. The other lines are the user's and are neither read nor changed."""

from __future__ import annotations

import fcntl
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.app.current_need import current_llm_config
from gpu_scheduler.app.preview import PreviewContext, preview
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.program import print_error
from gpu_scheduler.core.command.environment import find_conda_sh
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTE_HELP
from gpu_scheduler.core.jobsfile.compose import format_command_line, format_script_line
from gpu_scheduler.core.model.gpu_list import parse_gpu_list
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.core.text.secrets import masked
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.job_shell import job_shell
from gpu_scheduler.intake.text_parser import ParsedText, TextParser
from gpu_scheduler.store.recorded_options import recorded_options


def add(options: Namespace) -> int:
    """Checks everything, then appends the line and prints it. Warnings go to stderr."""
    known, recorded = recorded_gpus_and_folder(options, os.path.abspath(options.output_file))
    is_command = options.script is None
    line = _command_line(options, known, recorded) if is_command else _script_line(options, known)
    spec, notes = _parse_line(line, recorded or os.getcwd(), known)
    notes += [*_notes(options, spec), *_warnings(options, spec, known)]
    if options.output_file != "-":
        append_line(options.output_file, line)
    # A line that is only printed must be usable; secrets of an appended line are in the file anyway.
    print(line if options.output_file == "-" else masked(line))
    for note in notes:
        print_error(f"warning: {note}")
    return 0


def recorded_gpus_and_folder(options: Namespace, path: str) -> tuple[frozenset[int] | None, str | None]:
    """Returns the indices of the known GPUs and the folder in which the lines of a jobs file run.

    Either is None if unknown. A store that is missing or cannot be read does not prevent adding a line.
    """
    try:
        with open_store(location_of(options), allow_other_host=True) as store:
            folders = [row["cwd"] for row in store.jobs_files() if row["path"] == path]
            return frozenset(store.gpu_indices().values()) or None, folders[0] if folders else None
    except SchedulerError:
        return None, None


def _script_line(options: Namespace, known_gpus: frozenset[int] | None) -> str:
    given: str = options.script
    if given == "-":
        where = "jobs.txt" if options.output_file == "-" else options.output_file
        raise UsageError(
            "add does not read a line from the standard input; append it to the jobs file yourself:"
            f" … >> {where}; nothing was added"
        )
    script = os.path.abspath(os.path.expanduser(given) if given.startswith("~/") else given)
    if not os.path.isfile(script):
        what = "is not a file" if os.path.exists(script) else "does not exist"
        raise UsageError(f"SCRIPT {given}: {script} {what}; nothing was added")
    allowed = _allowed_gpus(options, known_gpus)
    return _compose_line(
        lambda: format_script_line(
            _attribute_items(options), script, options.conda or None, options.args, options.priority, allowed
        )
    )


def _command_line(options: Namespace, known_gpus: frozenset[int] | None, recorded_cwd: str | None) -> str:
    """Returns the line of a command, which runs in the current folder.

    The line names that folder if lines of its jobs file run elsewhere, or likely will.
    """
    here = os.getcwd()
    likely = here if options.output_file == "-" else os.path.dirname(os.path.abspath(options.output_file))
    items = [f"priority={options.priority}", *_attribute_items(options)]
    if options.conda:
        items.append(f"conda={options.conda}")
    if _allowed_gpus(options, known_gpus) is not None:
        items.append(f"allowed={options.gpus}")
    if options.attribute_cwd is None and (recorded_cwd or likely) != here:
        items.append(f"cwd={here}")
    return _compose_line(lambda: format_command_line(items, options.command_words))


def _attribute_items(options: Namespace) -> list[str]:
    """Returns the attributes given as options, as a block has them, with paths made absolute."""
    items: list[str] = []
    for key in ATTRIBUTE_HELP:
        value = getattr(options, f"attribute_{key}", None)
        if value is True:
            items.append(key)
        elif key == "env":
            items += [f"env:{variable}" for variable in value or ()]
        elif value:
            path = key in ("venv", "cwd")
            items.append(f"{key}={os.path.abspath(os.path.expanduser(value)) if path else value}")
    return items


def _allowed_gpus(options: Namespace, known_gpus: frozenset[int] | None) -> tuple[int, ...] | None:
    try:
        return parse_gpu_list(options.gpus, known_gpus)
    except ValueError as error:
        raise UsageError(f"--gpus {options.gpus}: {error}; nothing was added") from None


def _compose_line(compose: Callable[[], str]) -> str:
    try:
        line = compose()
    except ValueError as error:
        raise UsageError(f"these values make no valid line: {error}; nothing was added") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{line!r} is not valid UTF-8, which jobs files must be; nothing was added"
        ) from None
    return line


def _parse_line(line: str, cwd: str, known_gpus: frozenset[int] | None) -> tuple[JobSpec, list[str]]:
    """Returns the job of the line, read as the scheduler reads it, and the notes about a command."""
    parser = TextParser(cwd, os.path.expanduser("~"), known_gpus)
    (read,) = parser.parse(f"{line}\n".encode(), ParsedText(), ()).lines
    if read.problem is not None:
        raise UsageError(f"{line}: {read.problem}; nothing was added")
    spec = parser.spec_of(read)
    return spec, list(read.notes) if spec.kind == "command" else []


def _warnings(options: Namespace, spec: JobSpec, known_gpus: frozenset[int] | None) -> Iterator[str]:
    """Yields the warnings that `lint` gives for the job."""
    config, limits, totals = LlmConfig(), Limits(), {}
    conda_sh = find_conda_sh(os.environ, os.path.exists)
    with suppress(SchedulerError), open_store(location_of(options), allow_other_host=True) as store:
        started = recorded_options(store)
        config, limits, conda_sh = current_llm_config(store), started, started.conda_sh or conda_sh
        totals = {row["idx"]: row["total_mib"] for row in store.gpus() if row["total_mib"] is not None}
    if conda_sh is None:
        spec = replace(spec, conda=None)  # the machine on which the scheduler will run may have conda
    envs = _conda_environments(conda_sh, spec.conda) if conda_sh and spec.conda else None
    shell = job_shell(os.environ)
    setting = PreviewContext(config, known_gpus, conda_sh, os.path.exists, envs, totals, limits, shell)
    yield from preview(0, spec, (), None, setting).warnings


def _conda_environments(conda_sh: str, name: str) -> list[str] | None:
    """Returns the environments that conda lists, None if it fails.

    Asking conda takes a second, so it is skipped if the environment lies in its usual place.
    """
    if name == "base" or (Path(conda_sh).parents[2] / "envs" / name).is_dir():
        return [name]
    from gpu_scheduler.health.doctor.conda import list_environments, parse_environments

    said = list_environments(conda_sh)
    return parse_environments(said.output) if said.succeeded else None


def _notes(options: Namespace, spec: JobSpec) -> list[str]:
    """Returns notes on why the line gives no new job, or none now; empty without a readable store."""
    try:
        with open_store(location_of(options), allow_other_host=True) as store:
            # A command makes a new job each time.
            job = store.newest_jobs([spec.identity]).get(spec.identity) if spec.kind == "csv" else None
            pid, watched = scheduler_pid_of(store), recorded_options(store).jobs_file
    except SchedulerError:
        return []
    notes = []
    if job is not None and job["state"] != "finished":
        notes.append(f"this line adds no job: job {job['id']}, which runs the same, is {job['state']}")
    elif job is not None and job["outcome"] == "completed":
        again = f"`retry {job['id']}` runs it again"
        notes.append(f"this line will not run: job {job['id']}, which runs the same, completed; {again}")
    path = os.path.abspath(options.output_file)
    if options.output_file != "-" and pid is not None and (watched and os.path.abspath(watched)) != path:
        other = watched or "no jobs file"
        notes.append(f"the scheduler ({pid_text(pid)}) does not watch {path}; it watches {other}")
    return notes


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
    """Opens the file that is at `path` now and locks it against other `add`s; returns the descriptor."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # An editor may have replaced the file while this waited for the lock.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
