"""`add`: appends one line to a jobs file, which stays the user's: nothing of it is read or changed."""

from __future__ import annotations

import fcntl
import os
from argparse import Namespace
from collections.abc import Iterator

from gpu_scheduler.cli.need import config_of
from gpu_scheduler.cli.program import complain
from gpu_scheduler.cli.record import opened, pid_of
from gpu_scheduler.core.gpulist import parse_gpu_list
from gpu_scheduler.core.jobline import Malformed, Parsed, format_csv_line, parse_line
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.linewarnings import line_warnings
from gpu_scheduler.core.needs import Ask, LlmConfig, resolve
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.jobshell import job_shell
from gpu_scheduler.store.started import started_with


def add(options: Namespace) -> int:
    """Check everything, then append the line and print it; notes about it go to stderr."""
    script = _script(options.script)
    known, cwd = from_record(options, os.path.abspath(options.output_file))
    line = _line(options, script, known)
    spec = _parsed(line, cwd)
    notes = [*_notes(options, spec), *_warnings(options, spec)]
    if options.output_file != "-":
        append(options.output_file, line)
    print(line)
    for note in notes:
        complain(note)
    return 0


def from_record(options: Namespace, path: str) -> tuple[frozenset[int] | None, str]:
    """The indices of the GPUs there are (None: not known), and the folder in which lines of that file run.

    That is the one recorded for its jobs file, else the present one. A record that is absent, or cannot be
    read, keeps no line out.
    """
    try:
        with opened(options, foreign=True) as store:
            folders = [row["cwd"] for row in store.jobs_files() if row["path"] == path]
            return frozenset(store.indices().values()) or None, (folders or [os.getcwd()])[0]
    except SchedulerError:
        return None, os.getcwd()


def _script(given: str) -> str:
    path = os.path.abspath(os.path.expanduser(given) if given.startswith("~/") else given)
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise UsageError(f"SCRIPT {given}: {path} {what}; nothing was added")
    return path


def _line(options: Namespace, script: str, known: frozenset[int] | None) -> str:
    try:
        allowed = parse_gpu_list(options.gpus, known)
    except ValueError as error:
        raise UsageError(f"--gpus {options.gpus}: {error}; nothing was added") from None
    try:
        line = format_csv_line(script, options.conda or None, options.args, options.priority, allowed)
    except ValueError as error:
        raise UsageError(f"no line can be made of this: {error}; nothing was added") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{line!r} is not UTF-8, which jobs files are; nothing was added") from None
    return line


def _parsed(line: str, cwd: str) -> JobSpec:
    read = parse_line(line, cwd, os.path.expanduser("~"))
    if not isinstance(read, Parsed):
        why = read.reason if isinstance(read, Malformed) else "it would be skipped"
        raise UsageError(f"{line}: {why}; nothing was added")
    return read.spec


def _notes(options: Namespace, spec: JobSpec) -> list[str]:
    """Why the line will give no new job, or not now, in words; nothing where there is no record to ask."""
    try:
        with opened(options, foreign=True) as store:
            job = store.newest_of([spec.identity]).get(spec.identity)
            pid, watched = pid_of(store), started_with(store).jobs_file
    except SchedulerError:
        return []
    notes = []
    if job is not None and job["state"] != "finished":
        notes.append(f"this line gives no new job: job {job['id']}, which runs the same, is {job['state']}")
    elif job is not None and job["outcome"] == "completed":
        again = f"`retry {job['id']}` runs it again"
        notes.append(f"this line will not run: the same was completed as job {job['id']}; {again}")
    path = os.path.abspath(options.output_file)
    if options.output_file != "-" and pid is not None and watched not in (None, path):
        other = watched or "no jobs file"
        notes.append(f"the scheduler (pid {pid}) does not read {path}; it watches {other}")
    return notes


def _warnings(options: Namespace, spec: JobSpec) -> Iterator[str]:
    """What will keep the job from running as expected."""
    try:
        with opened(options, foreign=True) as store:
            config = config_of(store)
    except SchedulerError:
        config = LlmConfig()
    return line_warnings(spec, resolve(Ask.of(spec), config).count, job_shell(os.environ))


def append(path: str, line: str) -> None:
    """Add a line at the end of a file, made if missing, in one write under the file's lock.

    A last line without its newline gets one first. Raises SchedulerError if the file cannot be written.
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
    """A descriptor of the file that lies at `path` now, locked against every other `add`."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # An editor may have put another file in its place while the lock was waited for.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
