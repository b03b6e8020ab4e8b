"""Formats the details of one job as text and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpu_scheduler.core.scheduling.declaration_accuracy import DeclarationAccuracy
from gpu_scheduler.core.text.formatting import format_age, format_duration, safe_text
from gpu_scheduler.core.text.secrets import masked_values
from gpu_scheduler.views.event_messages import detail as event_detail
from gpu_scheduler.views.need_text import current_need_text
from gpu_scheduler.views.outcome_text import outcome_text
from gpu_scheduler.views.reason_text import reason_text
from gpu_scheduler.views.status_json import job_object
from gpu_scheduler.views.wait_text import job_reason_text
from gpu_scheduler.views.warnings import attempt_warnings, job_warnings

if TYPE_CHECKING:
    from gpu_scheduler.app.job_detail import AttemptView, JobDetail

_LABEL_WIDTH = 14


def to_json(detail: JobDetail) -> str:
    """Formats a job as one ASCII JSON object, as docs/json.md describes."""
    return json.dumps(
        {
            "now": detail.now,
            "job": job_object(detail.job),
            "kind": detail.kind,
            "identity": detail.identity,
            "line": None if detail.line is None else {"file": detail.line[0], "line": detail.line[1]},
            "script": detail.script,
            "arguments": list(detail.arguments),
            "need": current_need_text(detail.need),
            "min_vram_mib": detail.min_vram_mib,
            "oom_retries_used": detail.oom_used,
            "oom_retries": detail.oom_retries,
            "fail_retries_used": detail.fail_used,
            "fail_retries": detail.fail_retries,
            "timeout_s": detail.timeout_s,
            "allowed_gpus": None if detail.allowed is None else list(detail.allowed),
            "environment": {
                "conda": detail.conda, "venv": detail.venv, "cwd": detail.cwd, "env": dict(detail.env),
            },
            "attempts": masked_values([_attempt_object(one, detail) for one in detail.attempts]),
            "history": masked_values(
                [{"at": one.at, "state": one.kind, "reason": event_detail(one)} for one in detail.history]
            ),
        },
        indent=1,
    ) + "\n"  # fmt: skip


def _attempt_object(attempt: AttemptView, detail: JobDetail) -> dict[str, Any]:
    # The fields of a view are the keys that docs/json.md describes.
    values = {
        **vars(attempt),
        "reason": _reason_text(attempt),
        "warnings": attempt_warnings(detail.job.id, attempt),
        "declaration_accuracy": accuracy_text(attempt.declaration_accuracy, detail.tolerance),
    }
    del values["launch_error"]
    return values


def _reason_text(attempt: AttemptView) -> str | None:
    return attempt.launch_error if attempt.reason is None else reason_text(attempt.reason)


def to_text(detail: JobDetail) -> str:
    """Formats a job as text, one fact per line."""
    blocks = ["\n".join(_fact_lines(detail))]
    blocks += ["\n".join(_attempt_lines(attempt, detail)) for attempt in detail.attempts]
    blocks.append("\n".join(["History", *_history_lines(detail)]))
    return "\n\n".join(blocks) + "\n"


def _row(title: str, value: str) -> str:
    return f"{title:<{_LABEL_WIDTH}}{safe_text(value)}"


def _fact_lines(detail: JobDetail) -> Iterator[str]:
    job = detail.job
    state = outcome_text(job.outcome, job.exit_code, job.signal) if job.outcome else job.state
    yield _row(f"Job {job.id}", f"{job.name}: {job.text}" if job.name else job.text)
    yield _row("State", state)
    reason = job_reason_text(job)
    if reason:
        yield _row("Reason", reason)
    yield from (_row("Warning", warning) for warning in job_warnings(job))
    yield _row("From", _origin(detail))
    yield _row("Kind", f"{detail.kind}, identity {detail.identity}")
    if detail.script is not None:
        yield _row("Script", detail.script)
        yield _row("Arguments", " ".join(detail.arguments) or "none")
    yield _row("Need", current_need_text(detail.need))
    yield from _retry_lines(detail)
    if detail.timeout_s is not None:
        yield _row("Time limit", format_duration(detail.timeout_s))
    yield _row("Allowed GPUs", "any" if detail.allowed is None else ", ".join(map(str, detail.allowed)))
    yield _row("Priority", str(job.priority))
    yield _row("Environment", _environment_text(detail))
    yield _row("Folder", detail.cwd)
    yield from (_row("Variable", f"{name}={value}") for name, value in detail.env.items())
    yield _row("Submitted", _time_and_age(job.created_at, detail.now))


def _origin(detail: JobDetail) -> str:
    """Formats the jobs file and the line of a job, or the front end that added it."""
    if detail.line is not None:
        return f"{detail.line[0]}:{detail.line[1]}"
    kind, _, path = detail.job.source.partition(":")
    return f"{path}, from which its line was removed" if kind == "file" else f"`{kind}`"


def _retry_lines(detail: JobDetail) -> Iterator[str]:
    for after, used, allowed in (
        ("out of memory", detail.oom_used, detail.oom_retries),
        ("other failures", detail.fail_used, detail.fail_retries),
    ):
        if used or allowed is not None:
            of = "" if allowed is None else f" of {allowed}"
            yield _row("Retries", f"{used}{of} after {after}")


def accuracy_text(accuracy: DeclarationAccuracy | None, tolerance: float) -> str | None:
    """Formats an accuracy: "within ±10%", "over-declared (-59%)", "under-declared (+47%)"."""
    if accuracy is None:
        return None
    if accuracy.kind == "within":
        return f"within ±{100 * tolerance:g}%"
    return f"{accuracy.kind}-declared ({accuracy.percent:+d}%)"


def _memory_lines(attempt: AttemptView, tolerance: float) -> Iterator[str]:
    """Yields the declaration, peaks and load of an attempt."""
    if attempt.vram_declared is not None:
        yield _row("  Declared", f"{attempt.vram_declared} MiB per GPU")
    elif attempt.share_declared is not None:
        yield _row("  Declared", f"share {attempt.share_declared:g} of each GPU")
    if attempt.peaks:
        peaks = ", ".join(f"GPU {gpu}: {mib} MiB" for gpu, mib in sorted(attempt.peaks.items()))
        accuracy = accuracy_text(attempt.declaration_accuracy, tolerance)
        yield _row("  Peak", f"{peaks}; {accuracy}" if accuracy else peaks)
    if attempt.load_percent is not None:
        yield _row("  Load", f"{attempt.load_percent:.0f} % on average")


def _environment_text(detail: JobDetail) -> str:
    if detail.venv is not None:
        return f"venv {detail.venv}"
    if detail.conda:
        return f"conda {detail.conda}"
    return "conda base, if conda is installed" if detail.kind == "csv" else "none specified"


def _attempt_lines(attempt: AttemptView, detail: JobDetail) -> Iterator[str]:
    now = detail.now
    gpus = ", ".join(map(str, attempt.gpus)) or "none"
    yield f"Attempt {attempt.number}"
    yield _row("  GPUs", gpus)
    if attempt.started_at is None:
        yield _row("  Started", f"not yet; requested at {_time_and_age(attempt.created_at, now)}")
    else:
        yield _row("  Started", _time_and_age(attempt.started_at, now))
    if attempt.outcome is not None:
        took = ""
        if attempt.started_at is not None and attempt.ended_at is not None:
            took = f", after {format_duration(attempt.ended_at - attempt.started_at)}"
        yield _row("  Ended", f"{_time_and_age(attempt.ended_at, now)}{took}")
        yield _row("  Outcome", outcome_text(attempt.outcome, attempt.exit_code, attempt.signal))
    reason = _reason_text(attempt)
    if reason:
        yield _row("  Reason", reason)
    yield from _memory_lines(attempt, detail.tolerance)
    yield from (_row("  Warning", warning) for warning in attempt_warnings(detail.job.id, attempt))
    if attempt.launches > 1:
        yield _row("  Launches", str(attempt.launches))
    if attempt.survivors:
        yield _row("  Still running", "processes " + ", ".join(map(str, attempt.survivors)))
    for title, value in (
        ("  Command", attempt.command), ("  Log", attempt.log), ("  Session", attempt.session),
        ("  Files", attempt.folder),
    ):  # fmt: skip
        if value:
            yield _row(title, value)


def _history_lines(detail: JobDetail) -> Iterator[str]:
    for event in detail.history:
        reason = event_detail(event)
        suffix = f": {safe_text(reason)}" if reason else ""
        yield f"  {_local_time(event.at)}  {event.kind.replace('_', ' ')}{suffix}"


def _time_and_age(at: float | None, now: float) -> str:
    return "?" if at is None else f"{_local_time(at)} ({format_age(at, now)})"


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
