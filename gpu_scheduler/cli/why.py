"""`why`: explains, check by check, why a job does not start, or why it failed and what to do.

It works without a running scheduler and changes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile

from gpu_scheduler.app import job_views
from gpu_scheduler.app.current_need import current_need
from gpu_scheduler.app.job_refs import job_record, resolve_job
from gpu_scheduler.app.oom_case import oom_case
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.app.view_context import context_of, health_issues_of
from gpu_scheduler.attempts.log_tail import read_tail
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.cli.location import location_of
from gpu_scheduler.cli.terminal import stdout_screen
from gpu_scheduler.core.command.build import conda_environment
from gpu_scheduler.core.failure.log_lines import rendered_lines
from gpu_scheduler.core.failure.outcome_text import outcome_text
from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.finding import Check, Finding, bad, from_health_issue, ok, warn
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import FailureKind
from gpu_scheduler.core.model.states import FAILED, WAITING, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.text.formatting import (
    format_age,
    limit_length,
    memory_text,
    safe_text,
    without_repetition,
)
from gpu_scheduler.core.text.secrets import masked, masked_values
from gpu_scheduler.health.doctor import job as checks
from gpu_scheduler.intake.pauses import requested_pauses
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.records import AttemptRecord, JobRecord
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import placement_findings
from gpu_scheduler.views.event_messages import dated_line
from gpu_scheduler.views.findings import finding_object
from gpu_scheduler.views.findings import format_finding as finding_line
from gpu_scheduler.views.need_text import current_need_text
from gpu_scheduler.views.reason_text import reason_text
from gpu_scheduler.views.remedies import failure_remedy, oom_remedy
from gpu_scheduler.views.text_width import wrap_words
from gpu_scheduler.views.wait_reasons import job_reason_text

#: Maximum lines of a failed job's log, and events of a job, that are shown.
MAX_LOG_LINES = 10
_MAX_EVENTS = 3
#: Maximum number of jobs ahead that are named, and distance in lines within which a malformed line is near.
_MAX_JOBS_NAMED = 5
_NEARBY_LINES = 3
#: Checks that say how a job ended, and checks that may say what else was wrong.
_END_CHECKS, _OTHER_CHECKS = (Check.END, Check.HELD), (Check.SCHEDULER, Check.SEEN, Check.LOG)


@dataclass(frozen=True)
class JobInspection:
    """One job and the facts that its checks need.

    reason: why it waits or ended, without secrets; attempts: all that are not reconciled, as they are now.
    """

    store: Store
    row: JobRecord
    attempt: AttemptRecord | None
    view: JobView
    reason: str | None
    spec: JobSpec
    attempts: tuple[Attempt, ...]
    now: Now
    pid: int | None


@dataclass(frozen=True)
class Diagnosis:
    """The explanation: a headline, the checks, and for a failed job the last lines of its log."""

    headline: str
    findings: tuple[Finding, ...]
    log: tuple[str, ...] = ()


def why(options: Namespace) -> int:
    """Prints the explanation."""
    with open_store(location_of(options), read_only=True) as store:
        asked = _inspect(store, resolve_job(store, options.job))
        answer = Diagnosis(_headline(asked), tuple(_findings(asked)), _last_lines(asked))
    if options.json:
        sys.stdout.write(_to_json(asked, answer))
    else:
        brief = _has_failed(asked) and not options.verbose
        sys.stdout.write(_to_text(asked, answer, brief=brief))
    return 0


def _inspect(store: Store, job_id: int) -> JobInspection:
    pid = scheduler_pid_of(store)
    with store.snapshot():
        row = job_record(store, job_id)
        unsettled = store.active_attempts()
        context = context_of(store, unsettled, is_up=pid is not None)
        newest = store.newest_attempts([job_id]).get(job_id)
        shown = job_views.job_view(row, newest, context)
        reason = job_reason_text(shown)
        attempts = tuple(
            context.open_attempts.get(one["id"]) or observe_attempt(store, one) for one in unsettled
        )
    return JobInspection(
        store,
        row,
        newest,
        shown,
        reason and masked(reason),
        JobSpec.from_json(row["spec"]),
        attempts,
        context.now,
        pid,
    )


def _headline(inspection: JobInspection) -> str:
    job = inspection.view
    state = outcome_text(job.outcome, job.exit_code, job.signal) if job.outcome else job.state
    more = inspection.reason
    if job.wait is None and job.reason is not None:
        more = masked(reason_text(job.reason, without_exit=True))
    reason = f": {more}" if more else ""
    return f"job {job.id} {'' if job.outcome else 'is '}{state}{reason}"


def _findings(inspection: JobInspection) -> Iterator[Finding]:
    state = JobState(inspection.view.state)
    yield checks.scheduler(inspection.pid, is_waiting=state in WAITING)
    if state in WAITING:
        yield from _check_waiting(inspection, state)
    elif state is JobState.FINISHED:
        yield from _check_finished(inspection)
    else:
        yield from _check_running(inspection)
    yield from (warn(Check.SEEN, warning, "") for warning in inspection.view.warnings)
    yield from _check_logs(inspection)


def _check_waiting(inspection: JobInspection, state: JobState) -> Iterator[Finding]:
    store, row, spec = inspection.store, inspection.row, inspection.spec
    if state is JobState.HELD:
        yield checks.held(row["id"], row["held_by"], inspection.reason)
    yield from map(from_health_issue, health_issues_of(store))
    yield ok(Check.NEED, current_need_text(current_need(store, row)))
    yield from _check_gpus(inspection)
    conda_sh = recorded_options(store).conda_sh
    yield from checks.environment(spec, conda_environment(spec, conda_sh), conda_sh)
    yield checks.script(spec)
    if state is JobState.QUEUED:
        yield checks.order(row["priority"], *store.jobs_ahead_of(row, _MAX_JOBS_NAMED))
    yield from checks.retry(row["id"], _retry_wait_s(inspection), row["launch_failures"])
    yield from _check_line(inspection)


def _retry_wait_s(inspection: JobInspection) -> float | None:
    at = inspection.row["not_before_boot"]
    return (
        None
        if at is None or inspection.row["boot_id"] != inspection.now.boot_id
        else at - inspection.now.boot
    )


def _check_gpus(inspection: JobInspection) -> Iterator[Finding]:
    store, spec = inspection.store, inspection.spec
    rows = store.gpus()
    if not rows:
        yield bad(Check.GPUS, "none is known yet", "`start` detects them; `doctor` shows what it would find")
        return
    from gpu_scheduler.health.doctor import gpu_views

    limits = recorded_options(store)
    views = gpu_views.gpu_views(rows, requested_pauses(store), inspection.attempts, limits, inspection.now)
    need = current_need(store, inspection.row).need
    yield placement_findings.placement(need, spec.allowed, views, limits)
    yield from checks.unmanaged(spec.allowed, [view.index for view in views])
    for view in views:
        holders = {a.job_id for a in inspection.attempts if view.uuid in a.gpus and a.state.holds_gpus}
        yield placement_findings.gpu(view, need, spec.allowed, limits, holders)
    sampled = max((row["sampled_at"] for row in rows if row["sampled_at"] is not None), default=None)
    if inspection.pid is None and sampled is not None:
        yield warn(Check.VALUES, f"the GPUs were last sampled {format_age(sampled, inspection.now.wall)}", "")


def _check_line(inspection: JobInspection) -> Iterator[Finding]:
    row = inspection.row
    where = inspection.store.line_of(row["id"])
    path = str(row["source"]).partition(":")[2]
    bad_lines = [
        (one["number"], one["problem"]) for one in inspection.store.malformed_lines() if one["path"] == path
    ]
    number = None if where is None else where["number"]
    near = [one for one in bad_lines if number is not None and abs(one[0] - number) <= _NEARBY_LINES]
    place = None if where is None else (where["path"], where["number"])
    wait = WaitReason.from_json(row["line_wait"]) if row["line_wait"] else None
    yield from checks.line(row["source"], place, wait, near, len(bad_lines))


def _check_running(inspection: JobInspection) -> Iterator[Finding]:
    job = inspection.view
    gpus = ", ".join(map(str, job.gpus))
    since = (
        f", started {format_age(job.started_at, inspection.now.wall)}" if job.started_at is not None else ""
    )
    follow = f"`logs {job.id} -f` follows its output"
    if job.session:
        follow = f"`attach {job.id}` opens its session, {follow}"
    yield ok(Check.RUNS, f"on GPU {gpus}{since}; {follow}")
    memory = memory_text(job.peaks, job.vram_declared)
    if memory:
        yield ok(Check.MEMORY, f"peak so far {memory}")


def _check_finished(inspection: JobInspection) -> Iterator[Finding]:
    job = inspection.view
    again = f"`retry {job.id}` runs it again"
    if job.outcome == Outcome.COMPLETED.value:
        yield ok(Check.END, f"it exited with 0; {again}")
        return
    told = inspection.reason or outcome_text(job.outcome or "ended", job.exit_code, job.signal)
    if job.outcome not in FAILED:
        yield warn(Check.END, told, again)
        return
    found = _remedy(inspection)
    yield bad(Check.END, told, f"{found}; then {again}" if found else again)
    if inspection.attempt is not None:
        folder = inspection.store.data_dir.attempt_folder(
            job.id, inspection.attempt["number"], inspection.attempt["token"]
        )
        yield checks.manual_rerun(str(folder))


def _remedy(inspection: JobInspection) -> str | None:
    """Returns the remedy for the failure of a job; None if none is known."""
    reason = inspection.view.reason
    kind = None if reason is None else reason.failure
    if kind is not FailureKind.CUDA_OOM or inspection.attempt is None:
        return failure_remedy(kind)
    ended_at = inspection.view.finished_at or inspection.now.wall
    return oom_remedy(oom_case(inspection.store, inspection.attempt, inspection.spec, ended_at))


def _check_logs(inspection: JobInspection) -> Iterator[Finding]:
    job = inspection.view
    if job.log is not None:
        there = os.path.exists(job.log)
        yield ok(Check.LOG, job.log) if there else warn(Check.LOG, f"{job.log} no longer exists", "")
    else:
        yield ok(Check.LOG, "none: the job was never started")
    told = [one for one in events_of_job(inspection.store, job.id) if one.kind != EventKind.RUNNING]
    for event in told[-_MAX_EVENTS:]:
        yield ok(Check.EVENTS, dated_line(event, recorded_options(inspection.store).tolerance))


def _has_failed(inspection: JobInspection) -> bool:
    """Returns whether the job failed, or is held because it was interrupted."""
    return inspection.view.outcome in FAILED or inspection.row["held_by"] == Outcome.INTERRUPTED.value


def _last_lines(inspection: JobInspection) -> tuple[str, ...]:
    """Returns the last lines of a failed job's log; the logs of other jobs are not opened."""
    if not _has_failed(inspection):
        return ()
    return tuple(map(masked, rendered_lines(read_tail(inspection.view.log))[-MAX_LOG_LINES:]))


def _to_text(inspection: JobInspection, diagnosis: Diagnosis, *, brief: bool) -> str:
    """Formats the explanation; brief: only the remedies and the problems apart from the end itself."""
    columns = stdout_screen().width
    headline = safe_text(limit_length(without_repetition(diagnosis.headline, diagnosis.log)))
    lines = [*_wrapped(headline, columns), ""]
    told = [*diagnosis.log, inspection.reason or ""]
    findings = [replace(one, message=without_repetition(one.message, told)) for one in diagnosis.findings]
    if brief:
        remedies = [one.remedy for one in findings if one.check in _END_CHECKS and one.remedy]
        lines += [row for remedy in remedies for row in _wrapped(f"What to do: {safe_text(remedy)}", columns)]
        findings = [one for one in findings if one.check in _OTHER_CHECKS and one.grade != "ok"]
    lines += [finding_line(finding, columns) for finding in findings]
    if diagnosis.log:
        output = [
            *dropwhile(lambda line: line.startswith("# "), diagnosis.log)
        ]  # without the runner's header
        end = [f"  {safe_text(limit_length(line))}" for line in output]
        lines += ["", "End of its log:", *end] if end else ["", "It printed nothing."]
    if brief:
        lines += ["", f"`why {inspection.view.id} -v` shows every check."]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, columns: int | None) -> list[str]:
    return [text] if columns is None else wrap_words(text, columns)


def _to_json(inspection: JobInspection, diagnosis: Diagnosis) -> str:
    job = inspection.view
    value: Mapping[str, object] = {
        "now": inspection.now.wall,
        "job": job.id,
        "state": job.state,
        "outcome": job.outcome,
        "reason": inspection.reason,
        "recorded": job.is_recorded,
        "scheduler": inspection.pid,
        "checks": masked_values([finding_object(finding) for finding in diagnosis.findings]),
        "log_end": list(diagnosis.log),
    }
    return json.dumps(value, indent=1) + "\n"
