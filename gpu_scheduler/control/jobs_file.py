"""Appends lines to a jobs file, and previews the effect of its lines without queuing a job.

The lines in the file belong to the user and are never changed. They are parsed as the scheduler does it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.config import NO_GPUS
from gpu_scheduler.control.line_note import LineNote, Note, NoteKind, line_note_text
from gpu_scheduler.control.new_line import (
    NewJob,
    Preview,
    RecordedSetting,
    attribute_items,
    check_single_line,
    compose_line,
    job_warnings,
    nearest_venv,
    nothing_is,
    parse_new_line,
    preview,
    recorded_setting,
)
from gpu_scheduler.core.command.build import environment_of
from gpu_scheduler.core.jobsfile.compose import format_command_line, format_script_line
from gpu_scheduler.core.jobsfile.diff import AcceptedLines, InsertJob, ReadingDiff
from gpu_scheduler.core.jobsfile.job_line import script_refusal
from gpu_scheduler.core.jobsfile.reading import REFERENCE_FORM, Line
from gpu_scheduler.core.model.gpu import format_gpu_list, parse_gpu_list
from gpu_scheduler.core.model.job_spec import NORMAL_PRIORITY, JobSpec, Need
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.text.formatting import (
    count_noun,
    format_duration,
    limit_length,
    masked_json,
    picked,
    safe_text,
)
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.job_checks import conda_sh_of, known_environments
from gpu_scheduler.intake.jobs_file_text import JobsFile, TextParser, read_standard_input
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import job_lookup, open_store
from gpu_scheduler.show.wait_text import need_text
from gpu_scheduler.store.jobs_files import MalformedLineRecord, newest_job_of
from gpu_scheduler.system.safe_file import FileProblem


class AddedLine(Struct, frozen=True):
    """A line that was appended, or that could be.

    warnings: why its job may not run as intended. notes: what the line means without saying it.
    """

    line: str
    warnings: tuple[LineNote, ...]
    notes: tuple[Note, ...]


def add(location: Location, lines: Sequence[NewJob], path: str | None) -> list[AddedLine]:
    """Checks everything, then appends the lines to a jobs file. Raises UsageError for a wrong value.

    path: None means the file that the running scheduler watches, or jobs.txt in this folder.
    """
    recorded = recorded_setting(location, None if path is None else os.path.abspath(path))
    if not recorded.jobs_file:
        raise UsageError("the scheduler watches no jobs file, so nothing was added; use `submit`")
    if path is None and os.path.dirname(recorded.jobs_file) != os.getcwd():
        lines = [replace(new, attributes={"cwd": os.getcwd(), **new.attributes}) for new in lines]
    added = [_check(location, new, recorded, recorded.jobs_file) for new in lines]
    append_line(path or recorded.jobs_file, "\n".join(one.line for one in added))
    return added


def compose(location: Location, lines: Sequence[NewJob]) -> list[AddedLine]:
    """Returns the lines that `add` would append to a jobs file in this folder."""
    recorded = recorded_setting(location, "")
    return [_check(location, new, recorded, None) for new in lines]


def _check(location: Location, new: NewJob, recorded: RecordedSetting, path: str | None) -> AddedLine:
    with nothing_is("added"):
        if new.script is None:
            line = _command_line(new, recorded, path)
        else:
            line = _script_line(new, new.script, recorded.known_gpus)
        spec, notes = parse_new_line(line, recorded.folder, recorded.known_gpus)
        if path is not None and (spec.after or spec.after_any):
            _check_references(location, line, path, recorded)
    found = (*_duplicate_notes(location, spec), *_watch_notes(recorded, path), *job_warnings(recorded, spec))
    return AddedLine(line, (*notes, *found), tuple(_notes(new, spec, recorded)))


def _notes(new: NewJob, spec: JobSpec, recorded: RecordedSetting) -> Iterator[Note]:
    """Yields what a number given as --gpus means, and the environment of a line that names none."""
    if _text(new, "allowed").isdecimal():
        yield Note(NoteKind.GPU_NUMBER, {"gpu": _text(new, "allowed")})
    if spec.conda is None and spec.venv is None:
        conda = environment_of(spec, recorded.conda_sh).conda
        yield Note(NoteKind.ENVIRONMENT, {"conda": conda, "venv": nearest_venv(spec.cwd)})


def _script_line(new: NewJob, given: str, known_gpus: frozenset[int] | None) -> str:
    script = os.path.abspath(os.path.expanduser(given) if given.startswith("~/") else given)
    if not os.path.isfile(script):
        what = "is not a file" if os.path.exists(script) else "does not exist"
        raise UsageError(f"SCRIPT {given}: {script} {what}")
    allowed = _allowed_gpus(new, known_gpus)
    # These attributes have fields of their own.
    others = {key: value for key, value in new.attributes.items() if key not in ("conda", "allowed")}
    return compose_line(
        lambda: format_script_line(
            script,
            _text(new, "conda"),
            str(new.arguments or ""),
            NORMAL_PRIORITY if new.priority is None else new.priority,
            allowed,
            attribute_items(others),
        )
    )


def _command_line(new: NewJob, recorded: RecordedSetting, path: str | None) -> str:
    """Returns the line for a command that runs in the current folder.

    The line names that folder if the lines of the jobs file run in another folder, or are likely to.
    """
    here = os.getcwd()
    likely = here if path is None else os.path.dirname(path)
    _allowed_gpus(new, recorded.known_gpus)
    items = [] if new.priority is None else [f"priority={new.priority}"]
    items += attribute_items(new.attributes)
    if "cwd" not in new.attributes and (recorded.cwd or likely) != here:
        items.append(f"cwd={here}")
    check_single_line(new.command)
    return compose_line(lambda: format_command_line(items, new.command))


def _allowed_gpus(new: NewJob, known_gpus: frozenset[int] | None) -> tuple[int, ...] | None:
    try:
        return parse_gpu_list(_text(new, "allowed"), known_gpus)
    except ValueError as error:
        raise UsageError(f"--gpus {_text(new, 'allowed')}: {error}") from None


def _text(new: NewJob, key: str) -> str:
    return str(new.attributes.get(key) or "")


def _check_references(location: Location, line: str, path: str, recorded: RecordedSetting) -> None:
    """Raises UsageError if the line would wait for an unknown job or for itself in this jobs file."""
    content = JobsFile(Path(path), trust=True).read()
    before = b"" if isinstance(content, FileProblem) else content
    before += b"" if not before or before.endswith(b"\n") else b"\n"
    with job_lookup(location) as exists:
        parser = TextParser(recorded.folder, os.path.expanduser("~"), recorded.known_gpus, exists)
        read = parser.parse(before + f"{line}\n".encode()).lines[-1]
    if read.accepted_form == REFERENCE_FORM:
        raise UsageError(f"{line}: {read.problem}")


def _duplicate_notes(location: Location, spec: JobSpec) -> list[Note]:
    """Returns a note if a job with the line's identity already exists; none if the store is unreadable."""
    if spec.kind != "csv":
        return []  # adding a command always creates a new job
    try:
        with open_store(location, read_only=True) as store:
            job = newest_job_of(store, spec.identity)
    except SchedulerError:
        return []
    if job is None:
        return []
    job_id, state, outcome = job
    if state is not JobState.FINISHED:
        return [Note(NoteKind.JOB_EXISTS, {"job": job_id, "state": state})]
    if outcome is Outcome.COMPLETED:
        return [Note(NoteKind.JOB_COMPLETED, {"job": job_id})]
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
    """Appends text lines to a file in a single write under the file's lock; creates the file if missing.

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


# Previews the effect of each line.


class LintView(Struct, frozen=True):
    """The preview of a jobs file. path: the path that the user gave; cwd: the folder in which lines run."""

    path: str
    cwd: str
    lines: Sequence[Preview]
    malformed: Sequence[MalformedLineRecord]


def read_jobs_file(path: str) -> bytes:
    """Returns the content of a jobs file. Raises UsageError if it cannot be read."""
    content = JobsFile(Path(path), trust=True).read()
    if isinstance(content, FileProblem):
        raise UsageError(f"{path}: {content.description}; give a jobs file, or - for the standard input")
    return content


def refuse_script(location: Location, path: str) -> None:
    """Raises UsageError if a file is a script and no jobs file, unless a scheduler has read it already."""
    content = JobsFile(Path(path), trust=True).read()
    refusal = None if isinstance(content, FileProblem) else script_refusal(path, content)
    if refusal is not None and recorded_setting(location, os.path.abspath(path)).cwd is None:
        raise UsageError(refusal)


def read_stream(fd: int) -> bytes:
    """Returns the content of standard input. Raises UsageError if it cannot be read."""
    content = read_standard_input(fd)
    if isinstance(content, FileProblem):
        raise UsageError(f"the standard input {content}; pipe a jobs file into it")
    return content


def lint(
    location: Location,
    path: str,
    content: bytes,
    *,
    llm_config: str | None = None,
    gpus: str | None = None,
    conda_sh: str | None = None,
) -> LintView:
    """Returns the effect of each line.

    path: the path of the file, whose recorded working folder is used; gpus: the value of `--gpus`, as for
    `start`; None means the scheduler's GPUs. Raises UsageError for a script, or if llm_config cannot be used.
    """
    refuse_script(location, path)
    config = LlmConfigFile(llm_config, trust=True)  # safe, because nothing in the file is executed
    config.refresh()
    recorded = recorded_setting(location, os.path.abspath(path))
    cwd = recorded.folder
    if gpus is not None:
        recorded = replace(recorded, known_gpus=_gpu_indices(gpus))
    with job_lookup(location) as exists:
        parser = TextParser(cwd, os.path.expanduser("~"), recorded.known_gpus, exists)
        lines = parser.parse(content).lines
    conda_sh = conda_sh_of(recorded.scheduler_pid, conda_sh) if conda_sh else recorded.conda_sh
    specs = [(line, parser.spec_of(line)) for line in lines if not line.malformed]
    # Asking conda takes a second.
    envs = known_environments(conda_sh) if conda_sh and any(spec.conda for _, spec in specs) else None
    context, same = recorded.context(config.current, conda_sh, envs), _duplicate_lines(lines)
    previews = tuple(
        preview(line.number, spec, line.notes, same.get(line.number), context) for line, spec in specs
    )
    malformed = [
        MalformedLineRecord(path, line.number, line.text, line.problem or "", line.accepted_form)
        for line in lines
        if line.malformed
    ]
    return LintView(path, cwd, previews, malformed)


def _gpu_indices(option: str) -> frozenset[int] | None:
    """Parses the value of `--gpus`, in the format of `start`: a count means the first GPUs."""
    if re.fullmatch(r"[0-9]+", option):
        return frozenset(range(int(option)))
    if option == NO_GPUS:
        return frozenset()
    listed = parse_gpu_list(option.removesuffix(","))
    return None if listed is None else frozenset(listed)


def _duplicate_lines(lines: Sequence[Line]) -> Mapping[int, int]:
    """Returns the number of the first line with the same job, by the number of each duplicate line."""
    actions = ReadingDiff((), AcceptedLines(tuple(lines), (None,) * len(lines)), {}, {}).actions
    jobs = {action.index for action in actions if isinstance(action, InsertJob)}
    first = {lines[index].identity: lines[index].number for index in sorted(jobs, reverse=True)}
    return {
        line.number: first[line.identity]
        for index, line in enumerate(lines)
        if index not in jobs and not line.malformed
    }


def lint_text(linted: LintView) -> str:
    """Formats every line in order and, below them, the numbers of jobs, duplicates and problems."""
    blocks = [(line.number, _line_text(linted.path, line)) for line in linted.lines]
    shown: set[str | None] = set()
    for bad in linted.malformed:
        blocks.append((bad.number, _malformed_text(bad, bad.accepted_form not in shown)))
        shown.add(bad.accepted_form)
    same = sum(line.duplicate_of is not None for line in linted.lines)
    warned = sum(bool(line.warnings) for line in linted.lines)
    counts = [count_noun(len(linted.lines) - same, "job")]
    counts += [count_noun(same, "duplicate line")] if same else []
    counts += [f"{count_noun(warned, 'line')} with a warning"] if warned else []
    counts += [f"{len(linted.malformed):,} malformed"]
    return "\n".join([*(text for _, text in sorted(blocks)), ", ".join(counts)]) + "\n"


def _line_text(path: str, line: Preview) -> str:
    spec = line.spec
    if line.duplicate_of is not None:
        duplicate = f"duplicate of line {line.duplicate_of}; both lines belong to one job"
        return f"{safe_text(path)}:{line.number}: {duplicate}"
    where = "any" if spec.allowed is None else format_gpu_list(spec.allowed)
    facts = [_kind_name(line), f"needs {need_text(line.need)}"]
    facts += [f"GPUs {where}"] if line.need.count and line.engine is None else []
    facts += [f"on {line.engine.capitalize()}"] if line.engine is not None else []
    facts += [f"priority {line.priority}"]
    facts += [f"name {spec.name}"] if spec.name else []
    facts += [f"conda {line.conda}"] if line.conda else []
    facts += [f"venv {spec.venv}"] if spec.venv else []
    facts += [f"env {' '.join(name for name, _ in spec.env)}"] if spec.env else []
    facts += [f"at most {format_duration(spec.timeout_s)}"] if spec.timeout_s is not None else []
    retries = [("running out of memory", spec.oom_retries), ("a failure", spec.fail_retries)]
    facts += [f"{n} retr{'y' if n == 1 else 'ies'} after {what}" for what, n in retries if n is not None]
    facts += [f"starts after {', '.join(spec.after)}"] if spec.after else []
    facts += [f"starts after the end of {', '.join(spec.after_any)}"] if spec.after_any else []
    facts += ["may preempt jobs of lower priority"] if spec.preempt else []
    facts += [f"preempted with SIG{spec.preempt_signal}"] if spec.preempt_signal else []
    facts += [f"resumes with {spec.resume_flag}"] if spec.resume_flag else []
    facts += [f"checkpoints {spec.checkpoints}"] if spec.checkpoints else []
    facts += ["held until `release`"] if spec.hold else []
    facts += ["cancelled by its line"] if spec.cancel else []
    below = [safe_text(limit_length(line.command)), f"in {safe_text(spec.cwd)}"]
    below += [f"note: {safe_text(limit_length(note))}" for note in map(line_note_text, line.notes)]
    below += [
        f"warning: {safe_text(limit_length(warning))}" for warning in map(line_note_text, line.warnings)
    ]
    head = f"{safe_text(path)}:{line.number}: {safe_text('; '.join(facts))}"
    return "\n".join([head, *(f"    {text}" for text in below)])


def _kind_name(line: Preview) -> str:
    return "torchrun" if line.spec.torchrun is not None else line.spec.kind


def _malformed_text(bad: MalformedLineRecord, show_accepted: bool) -> str:
    """Formats a malformed line. show_accepted: also show the accepted form."""
    head = f"{safe_text(bad.path)}:{bad.number}: malformed: {safe_text(limit_length(bad.problem))}"
    below = [
        safe_text(limit_length(bad.text)),
        *([f"accepted: {safe_text(bad.accepted_form or '')}"] if show_accepted else []),
    ]
    return "\n    ".join([head, *below])


def lint_json(linted: LintView) -> str:
    """Formats the preview as JSON, as docs/json.md describes."""
    value = {
        "file": linted.path,
        "cwd": linted.cwd,
        "lines": [_line_object(line) for line in linted.lines],
        "malformed": [
            {"line": bad.number, "text": bad.text, "reason": bad.problem, "accepted": bad.accepted_form}
            for bad in linted.malformed
        ],
    }
    return masked_json(value, 2) + "\n"


def need_object(need: Need) -> dict[str, Any]:
    """Returns a need as the object that docs/json.md describes."""
    return {
        "gpus": need.count,
        "share": need.share / WHOLE if need.share and not need.alone else None,
        "vram": need.vram,
        "idle": need.alone,
        "exclusive": need.exclusive,
        "description": need_text(need),
    }


def _line_object(line: Preview) -> dict[str, Any]:
    spec, need = line.spec, line.need
    return {
        "line": line.number,
        "text": spec.text,
        "kind": _kind_name(line),
        "name": spec.name,
        "same_as_line": line.duplicate_of,
        "priority": line.priority,
        "need": need_object(need),
        "engine": line.engine,
        "allowed_gpus": None if spec.allowed is None else list(spec.allowed),
        "conda": line.conda,
        **picked(spec, "venv", "cwd"),
        "env": dict(spec.env),
        "command": line.command,
        **picked(spec, "timeout_s", "oom_retries", "fail_retries", "after", "after_any", "hold", "cancel"),
        "notes": list(map(line_note_text, line.notes)),
        "warnings": list(map(line_note_text, line.warnings)),
    }
