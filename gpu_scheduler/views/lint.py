"""Formats the preview of a jobs file as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_scheduler.app.new_line import Preview
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.units import WHOLE
from gpu_scheduler.core.text.formatting import count_noun, format_duration, limit_length, safe_text
from gpu_scheduler.core.text.secrets import masked_json
from gpu_scheduler.views.submissions import line_note_text
from gpu_scheduler.views.wait_text import need_text

if TYPE_CHECKING:
    from gpu_scheduler.app.lint import LintView
    from gpu_scheduler.store.jobs_files import MalformedLineRecord


def to_text(linted: LintView) -> str:
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


def to_json(linted: LintView) -> str:
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
        "venv": spec.venv,
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "command": line.command,
        "timeout_s": spec.timeout_s,
        "oom_retries": spec.oom_retries,
        "fail_retries": spec.fail_retries,
        "after": list(spec.after),
        "after_any": list(spec.after_any),
        "hold": spec.hold,
        "cancel": spec.cancel,
        "notes": list(map(line_note_text, line.notes)),
        "warnings": list(map(line_note_text, line.warnings)),
    }
