"""Collects everything known about one job. It changes nothing and opens no log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.app import job_views
from gpu_scheduler.app.current_need import CurrentNeed, current_need
from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.app.view_context import context_of
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.share import WHOLE
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling.declaration_accuracy import DeclarationAccuracy, judge_declaration
from gpu_scheduler.core.text.secrets import hide_secrets, masked_words
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.jobs_files import line_of
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.app.status_report import AttemptWarning

#: The end of `core.command.build.BEGIN` and the `exec` before the job's own command.
_JOB_COMMAND_START = re.compile(r"exec 3>&-[^\n]*\nexec ")


@dataclass(frozen=True)
class AttemptView:
    """One attempt. Times in wall seconds; command: as its command.sh runs it, None = there is no command.sh.

    vram_declared: MiB on each GPU; share_declared: of each GPU, 1 = all of it; peaks: GPU index -> MiB;
    load_percent: mean over its GPUs and all samples; declaration_accuracy: None until its end is recorded.
    """

    number: int
    gpus: tuple[int, ...]
    outcome: str | None
    reason: StateReason | None
    launch_error: str | None
    exit_code: int | None
    signal: int | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    log: str | None
    session: str | None
    folder: str
    command: str | None
    survivors: tuple[int, ...]
    launches: int
    warnings: tuple[AttemptWarning, ...]
    vram_declared: int | None
    share_declared: float | None
    peaks: Mapping[int, int]
    load_percent: float | None
    declaration_accuracy: DeclarationAccuracy | None


@dataclass(frozen=True)
class JobDetail:
    """Details of one job at `now`. line: (file, number) of its line now.

    arguments, env: without secrets; tolerance: error of a declaration that is still accurate.
    min_vram_mib: memory per GPU that it needs since it ran out of memory; *_used: retries used;
    *_retries: how many its line allows, None = the default.
    """

    now: float
    job: JobView
    kind: str
    identity: str
    line: tuple[str, int] | None
    script: str | None
    arguments: tuple[str, ...]
    need: CurrentNeed
    min_vram_mib: int | None
    oom_used: int
    oom_retries: int | None
    fail_used: int
    fail_retries: int | None
    timeout_s: float | None
    allowed: tuple[int, ...] | None
    conda: str | None
    venv: str | None
    cwd: str
    env: Mapping[str, str]
    attempts: tuple[AttemptView, ...]
    history: tuple[Event, ...]
    tolerance: float


def job_detail(location: Location, job: JobRef) -> JobDetail:
    """Returns the details of a job. Raises SchedulerError if there is no such job."""
    with open_store(location, read_only=True) as store:
        return _read(store, resolve_job(store, job))


def _read(store: Store, job_id: int) -> JobDetail:
    is_up = scheduler_pid_of(store) is not None
    with store.snapshot():
        job = job_record(store, job_id)
        attempts = store.attempts(job_id)
        open_now = [one for one in store.active_attempts() if one.job_id == job_id]
        context = context_of(store, open_now, is_up=is_up)
        view = job_views.job_view(job, attempts[-1] if attempts else None, context)
        spec = job.spec
        tolerance = store.recorded_options().tolerance
        line = line_of(store, job_id)
        return JobDetail(
            now=context.now.wall,
            job=view,
            kind=spec.kind,
            identity=job.identity,
            line=None if line is None else (line.path, line.number),
            script=spec.script,
            arguments=tuple(masked_words(spec.arguments)),
            need=current_need(store, job),
            min_vram_mib=job.min_vram_mib,
            oom_used=job.oom_retries_used,
            oom_retries=spec.oom_retries,
            fail_used=job.fail_retries_used,
            fail_retries=spec.fail_retries,
            timeout_s=spec.timeout_s,
            allowed=spec.allowed,
            conda=spec.conda,
            venv=spec.venv,
            cwd=spec.cwd,
            env=hide_secrets(spec.env),
            attempts=tuple(_attempt_view(store, one, view, context.indices, tolerance) for one in attempts),
            history=tuple(events_of_job(store, job_id)),
            tolerance=tolerance,
        )


def _attempt_view(
    store: Store, attempt: AttemptRecord, job: JobView, indices: Mapping[str, int], tolerance: float
) -> AttemptView:
    folder = store.data_dir.attempt_folder(attempt)
    # An end that is not recorded yet belongs to the latest attempt and is shown with the job.
    is_unrecorded = attempt.state.is_open and not job.is_recorded and job.outcome is not None
    share = job_views.share_declared(attempt)
    return AttemptView(
        number=attempt.number,
        gpus=job_views.gpu_indices(attempt, indices),
        outcome=job.outcome if is_unrecorded else attempt.outcome,
        reason=job.reason if is_unrecorded else attempt.reason,
        launch_error=attempt.launch_error,
        exit_code=job.exit_code if is_unrecorded else attempt.exit_code,
        signal=job.signal if is_unrecorded else attempt.signal,
        created_at=attempt.created_at,
        started_at=job.started_at if is_unrecorded else attempt.started_at,
        ended_at=job.finished_at if is_unrecorded else attempt.ended_at,
        log=attempt.log,
        session=job.session if attempt.state.is_open else attempt.session,
        folder=str(folder),
        command=job_command(folder),
        survivors=attempt.survivors,
        launches=attempt.launch_count,
        warnings=job_views.warnings(attempt, indices),
        vram_declared=job_views.vram_declared(attempt),
        share_declared=None if share is None else share / WHOLE,
        peaks=job_views.peaks_by_index(attempt, indices),
        load_percent=attempt.mean_load,
        declaration_accuracy=_declaration_accuracy(attempt, tolerance),
    )


def _declaration_accuracy(attempt: AttemptRecord, tolerance: float) -> DeclarationAccuracy | None:
    """Returns how accurate the declaration of an attempt was; None until its end is recorded."""
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
    # Shell text written by the user is shown without its `bash -c` wrapper.
    return words[2] if words[:2] == ["bash", "-c"] and len(words) == 3 else last.strip()
