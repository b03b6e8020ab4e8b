"""Formats the checks that explain why a job does not start or why it failed, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import dropwhile

from gpu_scheduler.app.diagnosis import Diagnosis, PlacementFacts, WaitingFacts
from gpu_scheduler.core.model.finding import Check, Finding, bad, from_health_issue, ok, warn
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.states import FAILED, WAITING, JobState, Outcome
from gpu_scheduler.core.model.units import format_seconds
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import (
    format_age,
    limit_length,
    memory_text,
    safe_text,
    without_repetition,
)
from gpu_scheduler.views import dependency_findings, job_findings, placement_findings, queue_findings
from gpu_scheduler.views.checkpoint_text import origin_text
from gpu_scheduler.views.dependency_findings import skip_remedy
from gpu_scheduler.views.event_messages import dated_line
from gpu_scheduler.views.findings import finding_object, format_finding
from gpu_scheduler.views.need_text import current_need_text
from gpu_scheduler.views.parent_text import parent_objects
from gpu_scheduler.views.progress_text import long_text
from gpu_scheduler.views.reason_text import outcome_text, reason_text
from gpu_scheduler.views.remedies import Remedy, failure_remedy, oom_remedy, timeout_remedy
from gpu_scheduler.views.text_width import wrap_words
from gpu_scheduler.views.wait_text import held_text, job_reason_text, wait_text
from gpu_scheduler.views.warnings import job_warnings

#: The checks that show how a job ended.
_END_CHECKS = (Check.END, Check.HELD)
#: The checks that may show another problem.
_OTHER_CHECKS = (Check.SCHEDULER, Check.SEEN, Check.LOG)
#: What sets the limit of the number of jobs that run, by the wait reason of a job that it concerns.
_LIMITS = {WaitKind.GROUP_FULL: "max-running", WaitKind.CPU_JOBS_FULL: "start --cpu-jobs"}


def to_text(diagnosis: Diagnosis, width: int | None, *, verbose: bool) -> str:
    """Formats the explanation.

    For a failed job, the text contains only the remedies and any other problems. width: the maximum width of
    a line, None = unlimited; verbose: show every check of a failed job.
    """
    brief = diagnosis.has_failed and not verbose
    log = diagnosis.log_end
    lines = [*_wrapped(safe_text(limit_length(without_repetition(_headline(diagnosis), log))), width), ""]
    repeated = [*log, job_reason_text(diagnosis.job) or ""]
    found = [replace(one, message=without_repetition(one.message, repeated)) for one in findings(diagnosis)]
    if brief:
        remedies = [one.remedy for one in found if one.check in _END_CHECKS and one.remedy]
        lines += [row for remedy in remedies for row in _wrapped(f"What to do: {safe_text(remedy)}", width)]
        found = [one for one in found if one.check in _OTHER_CHECKS and one.grade != "ok"]
    lines += [format_finding(finding, width) for finding in found]
    if log:
        output = dropwhile(lambda line: line.startswith("# "), log)  # omits the header that the runner writes
        end = [f"  {safe_text(limit_length(line))}" for line in output]
        lines += ["", "End of its log:", *end] if end else ["", "It printed nothing."]
    if brief:
        lines += ["", f"`why {diagnosis.job.record.id} -v` shows every check."]
    return "\n".join(lines) + "\n"


def to_json(diagnosis: Diagnosis) -> str:
    """Formats the explanation as JSON, as docs/json.md describes."""
    job = diagnosis.job
    value = {
        "now": diagnosis.now,
        "job": job.record.id,
        "state": job.record.state,
        "outcome": job.record.outcome,
        "reason": job_reason_text(diagnosis.job),
        "after": parent_objects(job.parents),
        "recorded": job.is_recorded,
        "scheduler": diagnosis.scheduler_pid,
        "checks": [finding_object(finding) for finding in findings(diagnosis)],
        "log_end": list(diagnosis.log_end),
    }
    return json.dumps(value, indent=1) + "\n"


def findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields the findings in the order in which they are shown."""
    state = diagnosis.job.record.state
    yield job_findings.scheduler(diagnosis.scheduler_pid, is_waiting=state in WAITING)
    yield from dependency_findings.findings(diagnosis.job, diagnosis.dependencies)
    if diagnosis.waiting is not None:
        yield from _waiting(diagnosis, diagnosis.waiting)
    elif state is JobState.FINISHED:
        yield from _end(diagnosis)
    else:
        yield from _running(diagnosis)
    yield from (warn(Check.SEEN, warning, "") for warning in job_warnings(diagnosis.job))
    yield from _logs(diagnosis)


def _headline(diagnosis: Diagnosis) -> str:
    job = diagnosis.job.record
    state = outcome_text(job.outcome, job.exit_code, job.signal) if job.outcome else f"is {job.state}"
    if job.state is JobState.HELD:
        return f"job {job.id} is {held_text(diagnosis.job)}"
    more = job_reason_text(diagnosis.job)
    if diagnosis.job.wait is None and job.reason is not None:
        more = reason_text(job.reason, without_exit=True)
    return f"job {job.id} {state}{f': {more}' if more else ''}"


def _waiting(diagnosis: Diagnosis, waiting: WaitingFacts) -> Iterator[Finding]:
    job = diagnosis.job.record
    if job.state is JobState.HELD:
        yield job_findings.held(job, job_reason_text(diagnosis.job))
    yield from map(from_health_issue, waiting.health_issues)
    if job.adopted is not None:
        # It already runs, so neither GPUs nor its environment keep it from being watched.
        yield from job_findings.retry(waiting.retry_in_s, job.launch_failures)
        return
    yield ok(Check.NEED, current_need_text(waiting.need))
    yield from _placement(diagnosis, waiting.need.need, waiting.placement)
    yield from waiting.environment
    if waiting.ahead is not None and waiting.need.need.count:
        yield job_findings.order(job.priority, *waiting.ahead)
    yield from job_findings.retry(waiting.retry_in_s, job.launch_failures)
    yield from job_findings.line(job, waiting.line)


def _placement(diagnosis: Diagnosis, need: Need, facts: PlacementFacts) -> Iterator[Finding]:
    wait = diagnosis.job.wait
    limit = None if wait is None else _LIMITS.get(wait.kind)
    full = None if wait is None or limit is None else f"{wait_text(wait)} ({limit})"
    if not need.count:
        said = "the job needs no GPU, so it waits for none"
        yield ok(Check.PLACING, said) if full is None else warn(Check.PLACING, full, "")
        return
    if not facts.gpus:
        remedy = "`start` without `--gpus none` detects the GPUs; `doctor` shows which ones it would find"
        yield bad(Check.GPUS, "none is managed", remedy)
        return
    allowed = diagnosis.job.record.spec.allowed
    job = diagnosis.job.record
    is_in_queue = job.state is JobState.QUEUED and not job.unmet_parents and job.line_wait is None
    where = "on the job's line" if job.is_of_file else f"with `set {job.id}`"
    if full is not None:
        yield warn(Check.PLACING, full, "")
    else:
        yield placement_findings.placement(
            need, allowed, facts.judged, facts.limits, where=where, now=diagnosis.now, is_in_queue=is_in_queue
        )
    if facts.queue is not None:
        yield from queue_findings.findings(facts.queue, facts.judged, diagnosis.now, facts.idle_budget, where)
    if facts.preemption is not None:
        yield placement_findings.preemption(facts.preemption)
    yield from job_findings.unmanaged(allowed, [gpu.index for gpu in facts.gpus])
    for gpu, judged in zip(facts.gpus, facts.judged, strict=True):
        yield placement_findings.gpu(
            gpu, judged, need, allowed, facts.limits, facts.holders[gpu.uuid], diagnosis.now
        )
    if diagnosis.scheduler_pid is None and facts.sampled_at is not None:
        age = format_age(facts.sampled_at, diagnosis.now)
        yield warn(Check.VALUES, f"last sample of the GPUs: {age}", "")


def _running(diagnosis: Diagnosis) -> Iterator[Finding]:
    job = diagnosis.job
    gpus = f"on GPU{'' if len(job.gpus) == 1 else 's'} {', '.join(map(str, job.gpus))}"
    gpus = gpus if job.gpus else "without a GPU"
    since = "" if job.started_at is None else f", started {format_age(job.started_at, diagnosis.now)}"
    follow = f"`logs {job.record.id} -f` follows its output"
    if job.is_without_log:
        follow = "its output does not go to a file"
    if job.session:
        follow = f"`attach {job.record.id}` opens its session, {follow}"
    resumed = None if job.attempt is None else job.attempt.resumed_from
    if resumed is not None:
        since += f", resumed from {origin_text(resumed.path, resumed.step)}"
    yield ok(Check.RUNS, f"{gpus}{since}; {follow}")
    if progress := long_text(job.progress, diagnosis.now):
        yield ok(Check.PROGRESS, progress)
    if job.peaks:
        yield ok(Check.MEMORY, f"peak so far {memory_text(job.peaks, job.vram_declared)}")
    elif job.vram_declared is not None:
        yield ok(Check.MEMORY, f"not measured yet; declared {job.vram_declared} MiB per GPU")


def _end(diagnosis: Diagnosis) -> Iterator[Finding]:
    job = diagnosis.job.record
    failed = diagnosis.dependencies.failed
    again = f"`retry {' '.join(map(str, [*failed, job.id]))}` runs it again"
    if not job.spec.can_start:
        again = f"`{job_findings.queueing_command(job)}` runs it again"
    if failed:
        again += f", and first {'job' if len(failed) == 1 else 'jobs'} {', '.join(map(str, failed))}"
    if job.outcome is Outcome.COMPLETED:
        yield ok(Check.END, f"the job exited with code {job.exit_code or 0}; {again}")
        return
    end = job_reason_text(diagnosis.job) or outcome_text(job.outcome or "ended", job.exit_code, job.signal)
    if job.outcome is Outcome.SKIPPED:
        yield bad(Check.END, f"skipped: {end}", skip_remedy(job.id, diagnosis.dependencies))
        return
    if job.outcome not in FAILED:
        yield warn(Check.END, end, again)
        return
    remedy = _remedy(diagnosis)
    if job.outcome is Outcome.TIMED_OUT and job.spec.timeout_s is not None:
        end = f"{end} after {format_seconds(job.spec.timeout_s)}"
    steps = [] if remedy is None else [remedy.text]
    steps += [] if remedy is not None and remedy.restarts else [again]
    yield bad(Check.END, end, "; then ".join(steps))
    if diagnosis.attempt_folder is not None:
        yield job_findings.manual_rerun(diagnosis.attempt_folder)


def _remedy(diagnosis: Diagnosis) -> Remedy | None:
    """Returns the remedy for the failure of a job; None if none is known."""
    job = diagnosis.job.record
    without_line = None if job.is_of_file else job.id
    if diagnosis.oom is not None:
        return oom_remedy(diagnosis.oom, without_line)
    if job.outcome is Outcome.TIMED_OUT:
        return timeout_remedy(job.spec.timeout_s, without_line)
    failure = None if job.reason is None else job.reason.failure
    return failure_remedy(failure, without_line, is_script=job.spec.kind == "csv")


def _logs(diagnosis: Diagnosis) -> Iterator[Finding]:
    log = diagnosis.job.log
    if log is None and diagnosis.job.is_without_log:
        yield ok(Check.LOG, "none, because the output of the process does not go to a file")
    elif log is None:
        yield ok(Check.LOG, "none, because the job was never started")
    else:
        yield ok(Check.LOG, log) if diagnosis.log_exists else warn(Check.LOG, f"{log} no longer exists", "")
    yield from (ok(Check.EVENTS, dated_line(event, diagnosis.tolerance)) for event in diagnosis.events)


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrap_words(text, width)
