"""Formats new jobs: the results of `submit`, `adopt`, `import` and `lint`, and the notes about lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_scheduler.control.adopt import AdoptedJob
from gpu_scheduler.control.import_queue import ImportReport
from gpu_scheduler.control.line_note import LineNote, NoteKind
from gpu_scheduler.control.new_line import Preview
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.text.formatting import (
    count_noun,
    format_duration,
    format_gpus,
    limit_length,
    masked_json,
    picked,
    pid_text,
    safe_text,
)
from gpu_scheduler.views.wait_text import need_text

if TYPE_CHECKING:
    from gpu_scheduler.control.jobs_file import LintView
    from gpu_scheduler.store.jobs_files import MalformedLineRecord

# Formats the notes about a line of a jobs file.


def line_note_text(note: LineNote) -> str:
    """Formats a note about a line."""
    if isinstance(note, str):
        return note
    values = {key: _value_text(key, one) for key, one in note.data.items()}
    if note.kind is NoteKind.ENVIRONMENT:
        values["programs"] = _programs_text(note.data)
    return note.kind.sentence.format_map(values)


def _programs_text(data: Mapping[str, Any]) -> str:
    conda, venv = data["conda"], data["venv"]
    text = "the programs on the scheduler's PATH" if conda is None else f"conda environment {conda}"
    return (
        text if venv is None else f"{text}; `--venv {shlex.quote(str(venv))}` takes the one that is nearest"
    )


def _value_text(key: str, value: object) -> str:
    if isinstance(value, tuple) and key == "retried":
        return " ".join(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "none known"
    if isinstance(value, Need):
        return need_text(value)
    if isinstance(value, int) and key in ("scheduler_pid", "usable"):
        return pid_text(value) if key == "scheduler_pid" else count_noun(value, "GPU")
    if isinstance(value, Outcome):
        return str(value).replace("_", " ")
    return "no jobs file" if key == "watched" and not value else str(value)


# Formats the result of `adopt`.


def adopt_text(job: AdoptedJob) -> str:
    """Formats an adopted job as three lines: its id and name, its command and its folder."""
    name = "" if job.name is None else f": {safe_text(job.name)}"
    return (
        f"Adopted PID {job.pid} as job {job.id}{name}\n"
        f"    cmd: {safe_text(job.text)}\n"
        f"    cwd: {safe_text(job.cwd)}\n"
    )


def note_text(job: AdoptedJob) -> Iterator[str]:
    """Yields notes on the GPUs and the log of an adopted job, and on a scheduler that is not running."""
    alone = "; no other job starts there, because --vram was not given" if job.is_alone else ""
    yield f"it uses {format_gpus(job.gpus)}{alone}"
    if not job.can_start:
        yield (
            "it has replaced its command line by a title, so it cannot be started again unless"
            f" `set {job.id} command='…'` names its command after its end"
        )
    if job.log is None:
        yield "its output does not go to a file, so `logs` cannot show it"
    if not job.is_scheduler_up:
        yield "no scheduler is running; the next one watches the process (`start`)"


# Formats the result of importing a `queue.json`.


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


# Formats the preview of a jobs file.


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
    facts += [f"GPUs {where}"] if line.need.count else []
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
        "allowed_gpus": None if spec.allowed is None else list(spec.allowed),
        "conda": line.conda,
        **picked(spec, "venv", "cwd"),
        "env": dict(spec.env),
        "command": line.command,
        **picked(spec, "timeout_s", "oom_retries", "fail_retries", "after", "after_any", "hold", "cancel"),
        "notes": list(map(line_note_text, line.notes)),
        "warnings": list(map(line_note_text, line.warnings)),
    }
