"""`add`: appends one line to a jobs file. The other lines are the user's and are neither read nor changed."""

from __future__ import annotations

import fcntl
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.cli.need import config_of
from gpu_scheduler.cli.program import complain
from gpu_scheduler.cli.record import opened, pid_of
from gpu_scheduler.core.attributes import MEANINGS
from gpu_scheduler.core.compose import command_line, script_line
from gpu_scheduler.core.environment import find_conda_sh
from gpu_scheduler.core.gpulist import parse_gpu_list
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import LlmConfig
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.preview import Setting, preview
from gpu_scheduler.core.secrets import masked
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.filetext import FileText, TextParser
from gpu_scheduler.intake.jobshell import job_shell
from gpu_scheduler.store.started import started_with
from gpu_scheduler.views.words import pid_words


def add(options: Namespace) -> int:
    """Checks everything, then appends the line and prints it. Warnings go to stderr."""
    known, recorded = from_record(options, os.path.abspath(options.output_file))
    is_command = options.script is None
    line = _command_line(options, known, recorded) if is_command else _script_line(options, known)
    spec, notes = _parsed(line, recorded or os.getcwd(), known)
    notes += [*_notes(options, spec), *_warnings(options, spec, known)]
    if options.output_file != "-":
        append(options.output_file, line)
    # A line that is only printed must be usable; secrets of an appended line are in the file anyway.
    print(line if options.output_file == "-" else masked(line))
    for note in notes:
        complain(f"warning: {note}")
    return 0


def from_record(options: Namespace, path: str) -> tuple[frozenset[int] | None, str | None]:
    """Returns the indices of the known GPUs and the folder in which the lines of a jobs file run.

    Either is None if unknown. A store that is missing or cannot be read does not prevent adding a line.
    """
    try:
        with opened(options, foreign=True) as store:
            folders = [row["cwd"] for row in store.jobs_files() if row["path"] == path]
            return frozenset(store.indices().values()) or None, folders[0] if folders else None
    except SchedulerError:
        return None, None


def _script_line(options: Namespace, known: frozenset[int] | None) -> str:
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
    allowed = _allowed(options, known)
    return _made(
        lambda: script_line(
            _items(options), script, options.conda or None, options.args, options.priority, allowed
        )
    )


def _command_line(options: Namespace, known: frozenset[int] | None, recorded: str | None) -> str:
    """Returns the line of a command, which runs in the current folder.

    The line names that folder if lines of its jobs file run elsewhere, or likely will.
    """
    here = os.getcwd()
    likely = here if options.output_file == "-" else os.path.dirname(os.path.abspath(options.output_file))
    items = [f"priority={options.priority}", *_items(options)]
    if options.conda:
        items.append(f"conda={options.conda}")
    if _allowed(options, known) is not None:
        items.append(f"allowed={options.gpus}")
    if options.attribute_cwd is None and (recorded or likely) != here:
        items.append(f"cwd={here}")
    return _made(lambda: command_line(items, options.command_words))


def _items(options: Namespace) -> list[str]:
    """Returns the attributes given as options, as a block has them, with paths made absolute."""
    items: list[str] = []
    for key in MEANINGS:
        value = getattr(options, f"attribute_{key}", None)
        if value is True:
            items.append(key)
        elif key == "env":
            items += [f"env:{variable}" for variable in value or ()]
        elif value:
            path = key in ("venv", "cwd")
            items.append(f"{key}={os.path.abspath(os.path.expanduser(value)) if path else value}")
    return items


def _allowed(options: Namespace, known: frozenset[int] | None) -> tuple[int, ...] | None:
    try:
        return parse_gpu_list(options.gpus, known)
    except ValueError as error:
        raise UsageError(f"--gpus {options.gpus}: {error}; nothing was added") from None


def _made(make: Callable[[], str]) -> str:
    try:
        line = make()
    except ValueError as error:
        raise UsageError(f"these values make no valid line: {error}; nothing was added") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{line!r} is not valid UTF-8, which jobs files must be; nothing was added"
        ) from None
    return line


def _parsed(line: str, cwd: str, known: frozenset[int] | None) -> tuple[JobSpec, list[str]]:
    """Returns the job of the line, read as the scheduler reads it, and the notes about a command."""
    parser = TextParser(cwd, os.path.expanduser("~"), known)
    (read,) = parser.parse(f"{line}\n".encode(), FileText(), ()).lines
    if read.problem is not None:
        raise UsageError(f"{line}: {read.problem}; nothing was added")
    spec = parser.spec_of(read)
    return spec, list(read.notes) if spec.kind == "command" else []


def _warnings(options: Namespace, spec: JobSpec, known: frozenset[int] | None) -> Iterator[str]:
    """Yields the warnings that `lint` gives for the job."""
    config, limits, totals = LlmConfig(), Limits(), {}
    conda_sh = find_conda_sh(os.environ, os.path.exists)
    with suppress(SchedulerError), opened(options, foreign=True) as store:
        started = started_with(store)
        config, limits, conda_sh = config_of(store), started.limits, started.conda_sh or conda_sh
        totals = {row["idx"]: row["total_mib"] for row in store.gpus() if row["total_mib"] is not None}
    if conda_sh is None:
        spec = replace(spec, conda=None)  # the machine on which the scheduler will run may have conda
    envs = _environments(conda_sh, spec.conda) if conda_sh and spec.conda else None
    shell = job_shell(os.environ)
    setting = Setting(config, known, conda_sh, os.path.exists, envs, totals, limits, shell)
    yield from preview(0, spec, (), None, setting).warnings


def _environments(conda_sh: str, name: str) -> list[str] | None:
    """Returns the environments that conda lists, None if it fails.

    Asking conda takes a second, so it is skipped if the environment lies in its usual place.
    """
    if name == "base" or (Path(conda_sh).parents[2] / "envs" / name).is_dir():
        return [name]
    from gpu_scheduler.doctor.conda import ask_conda, environments

    said = ask_conda(conda_sh)
    return environments(said.text) if said.good else None


def _notes(options: Namespace, spec: JobSpec) -> list[str]:
    """Returns notes on why the line gives no new job, or none now; empty without a readable store."""
    try:
        with opened(options, foreign=True) as store:
            # A command makes a new job each time.
            job = store.newest_of([spec.identity]).get(spec.identity) if spec.kind == "csv" else None
            pid, watched = pid_of(store), started_with(store).jobs_file
    except SchedulerError:
        return []
    notes = []
    if job is not None and job["state"] != "finished":
        notes.append(f"this line adds no job: job {job['id']}, which runs the same, is {job['state']}")
    elif job is not None and job["outcome"] == "completed":
        again = f"`retry {job['id']}` runs it again"
        notes.append(f"this line will not run: job {job['id']}, which runs the same, completed; {again}")
    path = os.path.abspath(options.output_file)
    if options.output_file != "-" and pid is not None and watched not in (None, path):
        other = watched or "no jobs file"
        notes.append(f"the scheduler ({pid_words(pid)}) does not watch {path}; it watches {other}")
    return notes


def append(path: str, line: str) -> None:
    """Appends a line to a file in a single write under the file's lock; creates the file if it is missing.

    If the last line has no newline, one is added first. Raises SchedulerError if the file cannot be written.
    """
    try:
        fd = _locked(path)
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


def _locked(path: str) -> int:
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
