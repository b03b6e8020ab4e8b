"""Collects everything known about one job, for `show`. This changes nothing and opens no log."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.job import ADOPT, SUBMIT, Attempt, Job
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.scheduling.history import RunTimeKey, RunTimes
from gpu_scheduler.core.scheduling.placement import DeclarationAccuracy, judge_declaration
from gpu_scheduler.core.text.formatting import (
    count_noun,
    format_age,
    format_duration,
    hide_secrets,
    masked_json,
    masked_words,
    picked,
    safe_text,
)
from gpu_scheduler.show.events import accuracy_text
from gpu_scheduler.show.events import detail as event_detail
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.show.job_text import (
    attempt_warnings,
    checkpoint_object,
    checkpoint_text,
    engine_object,
    engine_text,
    job_warnings,
    long_text,
    outcome_text,
    reason_text,
)
from gpu_scheduler.show.job_views import (
    JobView,
    ViewContext,
    context_of,
    engine_of,
    gpu_indices,
    job_view,
    peaks_by_index,
    warnings,
    with_progress,
)
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.round_facts import CurrentNeed, current_need
from gpu_scheduler.show.status_json import job_object
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.show.wait_text import current_need_text, job_reason_text, parent_text
from gpu_scheduler.store.attempt_history import class_run_times
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.jobs_files import LineLocation, line_of
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import EngineStatus
    from gpu_scheduler.core.model.job_spec import JobSpec
    from gpu_scheduler.show.job_views import AttemptWarning


#: Matches the end of `core.command.build.BEGIN` and the `exec` before the job's own command.
_JOB_COMMAND_START = re.compile(r"exec 3>&-(?: 4>&-)?\nexec ")


class AttemptView(Struct, frozen=True):
    """One attempt.

    command: the job's own command in command.sh, None if it cannot be found; gpus: the indices of its GPUs;
    peaks: peak MiB by GPU index; declaration_accuracy: None until the attempt's end is recorded. engine: what
    its engine last said of it; None on this machine.
    """

    attempt: Attempt
    gpus: tuple[int, ...]
    folder: str
    command: str | None
    warnings: tuple[AttemptWarning, ...]
    peaks: Mapping[int, int]
    declaration_accuracy: DeclarationAccuracy | None
    engine: EngineStatus | None


class JobRunTime(Struct, frozen=True):
    """How long a job is expected to run in all, from its start.

    median_s: the median of earlier runs; upper_s: the seconds within which nine of ten such jobs end. The
    time limit of the job caps both. runs: the number of these runs. is_of_identity: whether they ran the same
    command; otherwise, the same program and model.
    """

    median_s: float
    upper_s: float
    runs: int
    is_of_identity: bool


class JobDetail(Struct, frozen=True):
    """The details of one job at `now`.

    line: the current position of its line; tolerance: the fraction by which an accurate declaration may be
    off. run_time: None if the job has finished, or if there are too few earlier runs.
    """

    now: float
    job: JobView
    line: LineLocation | None
    need: CurrentNeed
    attempts: tuple[AttemptView, ...]
    history: tuple[Event, ...]
    tolerance: float
    run_time: JobRunTime | None = None


def job_detail(location: Location, job: JobRef) -> JobDetail:
    """Returns the details of a job. Raises SchedulerError if there is no such job."""
    with open_store(location, read_only=True) as store:
        return _read(store, resolve_job(store, job))


def _read(store: Store, job_id: int) -> JobDetail:
    is_up = scheduler_pid_of(store) is not None
    with store.snapshot():
        job = job_record(store, job_id)
        attempts = store.attempts(job_id)
        context = context_of(store, [job_id], store.active_attempts(), is_up=is_up)
        view = job_view(job, attempts[-1] if attempts else None, context)
        if view.attempt is not None:
            attempts[-1] = view.attempt  # includes an end that is not in the store yet
        tolerance = store.recorded_options().tolerance
        return JobDetail(
            now=context.now.wall,
            job=with_progress(store, [view], context.now.wall)[0],
            line=line_of(store, job_id),
            need=current_need(store, job),
            attempts=tuple(_attempt_view(store, one, context, tolerance) for one in attempts),
            history=tuple(events_of_job(store, job_id)),
            tolerance=tolerance,
            run_time=None if job.state is JobState.FINISHED else _run_time(store, job),
        )


def _run_time(store: Store, job: Job) -> JobRunTime | None:
    key = RunTimeKey(job.identity, job.spec_json)
    known = RunTimes({key.workload_class: class_run_times(store, key.workload_class)})
    predicted = known.prediction(key)
    if predicted is None:
        return None
    median_s = predicted.seconds if key.timeout_s is None else min(predicted.seconds, key.timeout_s)
    upper_s = known.estimate(key).upper_s
    return JobRunTime(median_s, upper_s, predicted.runs, predicted.is_of_identity)


def _attempt_view(store: Store, attempt: Attempt, context: ViewContext, tolerance: float) -> AttemptView:
    folder = store.data_dir.attempt_folder(attempt)
    return AttemptView(
        attempt=attempt,
        gpus=gpu_indices(attempt, context.indices),
        folder=str(folder),
        command=job_command(folder),
        warnings=warnings(attempt, context.indices),
        peaks=peaks_by_index(attempt, context.indices),
        declaration_accuracy=_declaration_accuracy(attempt, tolerance),
        engine=engine_of(attempt, context),
    )


def _declaration_accuracy(attempt: Attempt, tolerance: float) -> DeclarationAccuracy | None:
    """Returns how accurate an attempt's declaration was; None until the attempt's end is recorded."""
    if attempt.state.is_open:
        return None
    return judge_declaration(
        [attempt.peaks.get(uuid) for uuid in attempt.gpus],
        [attempt.budgets.get(uuid) for uuid in attempt.gpus],
        tolerance,
        completed=attempt.outcome is Outcome.COMPLETED,
        by_share=attempt.vram is None,
    )


def job_command(folder: Path) -> str | None:
    """Returns the job's own command, read from the attempt's command.sh; None if it cannot be found."""
    try:
        text = (folder / "command.sh").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    found = _JOB_COMMAND_START.search(text)
    if found is None:
        return None
    last = text[found.end() :]
    try:
        words = shlex.split(last)
    except ValueError:
        return last.strip()
    # If the user wrote shell text, it is shown without the `bash -c` that the scheduler puts before it.
    is_shell_text = words[:1] == ["bash"] and words[1:-1] in (["-c"], ["-o", "pipefail", "-c"])
    return words[-1] if is_shell_text else last.strip()


_LABEL_WIDTH = 14


def to_json(detail: JobDetail) -> str:
    """Formats a job as one ASCII JSON object, as docs/json.md describes."""
    record, spec = detail.job.record, detail.job.record.spec
    value = {
        "now": detail.now,
        "job": job_object(detail.job),
        "kind": spec.kind,
        "identity": record.identity,
        "line": None if detail.line is None else {"file": detail.line.path, "line": detail.line.number},
        **picked(spec, "script", "arguments"),
        "need": current_need_text(detail.need),
        "min_vram_mib": record.min_vram_mib,
        "oom_retries_used": record.oom_retries_used,
        "oom_retries": spec.oom_retries,
        "fail_retries_used": record.fail_retries_used,
        "fail_retries": spec.fail_retries,
        "timeout_s": spec.timeout_s,
        "run_time": _estimate_object(detail.run_time),
        "checkpoint": checkpoint_object(record.checkpoint),
        "resumes_from": checkpoint_object(record.resume_from),
        "allowed_gpus": None if spec.allowed is None else list(spec.allowed),
        "environment": {**picked(spec, "conda", "venv", "cwd"), "env": dict(spec.env)},
        "attempts": [_attempt_object(one, detail.tolerance) for one in detail.attempts],
        "history": [{"at": one.at, "state": one.kind, "reason": event_detail(one)} for one in detail.history],
    }
    return masked_json(value, 1) + "\n"


def _attempt_object(view: AttemptView, tolerance: float) -> dict[str, Any]:
    attempt, share, accuracy = view.attempt, view.attempt.share_declared, view.declaration_accuracy
    return {
        "number": attempt.number,
        "gpus": view.gpus,
        "watched_pid": attempt.watched_pid,
        "resumed_from": checkpoint_object(attempt.resumed_from),
        "outcome": attempt.outcome,
        "reason": _reason_text(attempt),
        **picked(attempt, "exit_code", "signal", "created_at", "started_at", "ended_at", "log", "session"),
        **picked(view, "folder", "command"),
        "survivors": attempt.survivors,
        "launches": attempt.launch_count,
        "warnings": attempt_warnings(view.attempt, view.warnings),
        "vram_declared": attempt.vram_declared,
        "share_declared": None if share is None else share / WHOLE,
        "peaks": view.peaks,
        "load_percent": attempt.mean_load,
        "declaration_accuracy": accuracy and accuracy_text(accuracy, tolerance),
        "engine": engine_object(attempt, view.engine),
    }


def _reason_text(attempt: Attempt) -> str | None:
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
    job, spec = detail.job.record, detail.job.record.spec
    state = outcome_text(job.outcome, job.exit_code, job.signal) if job.outcome else job.state.value
    yield _row(f"Job {job.id}", f"{job.name}: {job.text}" if job.name else job.text)
    yield _row("State", state)
    reason = job_reason_text(detail.job)
    if reason:
        yield _row("Reason", reason)
    if progress := long_text(detail.job.progress, detail.now):
        yield _row("Progress", progress)
    yield from (_row("Warning", warning) for warning in job_warnings(detail.job))
    yield from (_row("Parent", parent_text(parent)) for parent in detail.job.parents)
    yield _row("From", _origin(detail))
    yield _row("Kind", f"{spec.kind}, identity {job.identity}")
    if spec.script is not None:
        yield _row("Script", spec.script)
        yield _row("Arguments", " ".join(masked_words(spec.arguments)) or "none")
    yield _row("Need", current_need_text(detail.need))
    yield from _retry_lines(job)
    if detail.run_time is not None:
        yield _row("Run time", _estimate_text(detail.run_time))
    if spec.timeout_s is not None:
        yield _row("Time limit", format_duration(spec.timeout_s))
    yield _row("Allowed GPUs", "any" if spec.allowed is None else ", ".join(map(str, spec.allowed)))
    yield _row("Priority", str(job.priority))
    yield from _preemption_lines(spec)
    yield _row("Environment", _environment_text(spec, job.source))
    yield _row("Folder", spec.cwd)
    yield from (_row("Variable", f"{name}={value}") for name, value in hide_secrets(spec.env).items())
    if job.resume_from is not None:
        yield _row("Resumes", f"from {checkpoint_text(job.resume_from, spec.cwd)}")
    elif job.checkpoint is not None:
        yield _row("Checkpoint", checkpoint_text(job.checkpoint, spec.cwd))
    yield _row("Submitted", _time_and_age(job.created_at, detail.now))


def _origin(detail: JobDetail) -> str:
    """Formats the jobs file and line of a job, or the front end that added the job."""
    if detail.line is not None:
        return f"{detail.line.path}:{detail.line.number}"
    kind, _, path = detail.job.record.source.partition(":")
    if kind == "redis":
        return detail.job.record.source
    return f"{path}; its line was removed" if kind == "file" else f"`{kind}`"


def _preemption_lines(spec: JobSpec) -> Iterator[str]:
    if spec.preempt:
        yield _row("Preempts", "running jobs of lower priority")
    if spec.preempt_signal is not None:
        yield _row("Preempted", f"with SIG{spec.preempt_signal}")
    if spec.resume_flag is not None:
        yield _row("Resume flag", spec.resume_flag)
    if spec.checkpoints is not None:
        yield _row("Checkpoints", spec.checkpoints)


def _retry_lines(job: Job) -> Iterator[str]:
    for after, used, allowed in (
        ("running out of memory", job.oom_retries_used, job.spec.oom_retries),
        ("other failures", job.fail_retries_used, job.spec.fail_retries),
    ):
        if used or allowed is not None:
            of = "" if allowed is None else f" of {allowed}"
            yield _row("Retries", f"{used}{of} after {after}")


def _memory_lines(view: AttemptView, tolerance: float) -> Iterator[str]:
    """Yields the declaration, peaks and load of an attempt."""
    attempt = view.attempt
    if attempt.vram_declared is not None:
        yield _row("  Declared", f"{attempt.vram_declared} MiB per GPU")
    elif attempt.share_declared is not None:
        yield _row("  Declared", f"share {attempt.share_declared / WHOLE:g} of each GPU")
    if view.peaks:
        peaks = ", ".join(f"GPU {gpu}: {mib} MiB" for gpu, mib in sorted(view.peaks.items()))
        accuracy = view.declaration_accuracy
        yield _row("  Peak", f"{peaks}; {accuracy_text(accuracy, tolerance)}" if accuracy else peaks)
    if attempt.mean_load is not None:
        yield _row("  Load", f"{attempt.mean_load:.0f} % on average")


def _environment_text(spec: JobSpec, source: str) -> str:
    if spec.venv is not None:
        return f"venv {spec.venv}"
    if spec.conda:
        return f"conda {spec.conda}"
    if spec.kind == "csv":
        return "conda base, if conda is installed"
    if source == ADOPT:
        return "that of the process that was adopted"
    return "that of the shell in which it was submitted" if source == SUBMIT else "none specified"


def _attempt_lines(view: AttemptView, detail: JobDetail) -> Iterator[str]:
    attempt, now = view.attempt, detail.now
    yield f"Attempt {attempt.number}"
    if view.engine is None:
        yield _row("  GPUs", ", ".join(map(str, view.gpus)) or "none")
    else:
        yield _row("  Where", engine_text(attempt, view.engine))
    if attempt.started_at is None:
        yield _row("  Started", f"not yet; created {_time_and_age(attempt.created_at, now)}")
    else:
        yield _row("  Started", _time_and_age(attempt.started_at, now))
    if attempt.watched_pid is not None:
        yield _row("  Process", f"pid {attempt.watched_pid}, which was adopted")
    if attempt.resumed_from is not None:
        yield _row("  Resumed", f"from {checkpoint_text(attempt.resumed_from, detail.job.record.spec.cwd)}")
    if attempt.outcome is not None:
        took = ""
        if attempt.started_at is not None and attempt.ended_at is not None:
            took = f", after {format_duration(attempt.ended_at - attempt.started_at)}"
        yield _row("  Ended", f"{_time_and_age(attempt.ended_at, now)}{took}")
        yield _row("  Outcome", outcome_text(attempt.outcome, attempt.exit_code, attempt.signal))
    reason = _reason_text(attempt)
    if reason:
        yield _row("  Reason", reason)
    yield from _memory_lines(view, detail.tolerance)
    yield from (_row("  Warning", warning) for warning in attempt_warnings(view.attempt, view.warnings))
    if attempt.launch_count > 1:
        yield _row("  Launches", str(attempt.launch_count))
    if attempt.survivors:
        noun = "process" if len(attempt.survivors) == 1 else "processes"
        yield _row("  Still running", f"{noun} {', '.join(map(str, attempt.survivors))}")
    for title, value in (
        ("  Command", view.command), ("  Log", attempt.log), ("  Session", attempt.session),
        ("  Files", view.folder),
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


def _estimate_text(run_time: JobRunTime) -> str:
    """Returns how long a job usually runs, and on what that is based."""
    runs = count_noun(run_time.runs, "run")
    basis = f"{runs} of this command" if run_time.is_of_identity else f"{runs} of its program and model"
    upper = f"9 of 10 such jobs end within {format_duration(run_time.upper_s)}"
    return f"usually {format_duration(run_time.median_s)} ({basis}); {upper}"


def _estimate_object(run_time: JobRunTime | None) -> dict[str, Any] | None:
    """Returns the estimate of a job as docs/json.md describes it; None if there is none."""
    if run_time is None:
        return None
    return {**picked(run_time, "median_s", "upper_s", "runs"), "same_command": run_time.is_of_identity}
