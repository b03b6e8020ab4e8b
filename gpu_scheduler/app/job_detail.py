"""Collects everything known about one job. This changes nothing and opens no log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.app.job_views import (
    ViewContext,
    context_of,
    gpu_indices,
    job_view,
    peaks_by_index,
    warnings,
    with_progress,
)
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.round_facts import CurrentNeed, current_need
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.job import Attempt, Job
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.history import RunTimeKey, RunTimes
from gpu_scheduler.core.scheduling.placement import DeclarationAccuracy, judge_declaration
from gpu_scheduler.store.attempt_history import class_run_times
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.jobs_files import LineLocation, line_of
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.app.status_report import AttemptWarning

#: Matches the end of `core.command.build.BEGIN` and the `exec` before the job's own command.
_JOB_COMMAND_START = re.compile(r"exec 3>&-(?: 4>&-)?\nexec ")


class AttemptView(Struct, frozen=True):
    """One attempt.

    command: the job's own command in command.sh, None if it cannot be found; gpus: the indices of its GPUs;
    peaks: peak MiB by GPU index; declaration_accuracy: None until the attempt's end is recorded.
    """

    attempt: Attempt
    gpus: tuple[int, ...]
    folder: str
    command: str | None
    warnings: tuple[AttemptWarning, ...]
    peaks: Mapping[int, int]
    declaration_accuracy: DeclarationAccuracy | None


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
