"""`why`: explains, check by check, why a job does not start, or why it failed and what to do.

It works without a running scheduler and changes nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile

from gpu_scheduler.cli.jobrefs import job_meant
from gpu_scheduler.cli.look import job_of
from gpu_scheduler.cli.need import need_now
from gpu_scheduler.cli.oomadvice import oom_case
from gpu_scheduler.cli.record import opened, pid_of
from gpu_scheduler.cli.status import context_of, screen_of_stdout, troubles_of
from gpu_scheduler.core.command import conda_of
from gpu_scheduler.core.facts import Attempt
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.lasterror import text_lines
from gpu_scheduler.core.linewait import LineWait
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.remedies import oom_remedy, remedy
from gpu_scheduler.core.secrets import masked, masked_values
from gpu_scheduler.core.states import FAILED, WAITING, JobState, Outcome
from gpu_scheduler.doctor import job as checks
from gpu_scheduler.doctor.findings import Finding, bad, finding_object, of_trouble, ok, warn
from gpu_scheduler.doctor.findings import line as finding_line
from gpu_scheduler.intake.pauses import wished_pauses
from gpu_scheduler.logtail import tail_of
from gpu_scheduler.sight import look_at
from gpu_scheduler.store.events import of_job
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store
from gpu_scheduler.views import jobs
from gpu_scheduler.views.events import dated
from gpu_scheduler.views.report import JobShown
from gpu_scheduler.views.widths import rows
from gpu_scheduler.views.words import (
    ago,
    explanation,
    memory_words,
    outcome_words,
    shortened,
    unrepeated,
    visible,
)

#: Maximum lines of a failed job's log, and events of a job, that are shown.
LAST_LINES = 10
_ABOUT_IT = 3
#: Maximum number of jobs ahead that are named, and distance in lines within which a malformed line is near.
_NAMED = 5
_NEAR = 3
#: Checks that say how a job ended, and checks that may say what else was wrong.
_ENDS, _BESIDE = ("end", "held"), ("scheduler", "seen", "log")


@dataclass(frozen=True)
class Asked:
    """One job and the facts that its checks need. attempts: all that are not reconciled, as they are now."""

    store: Store
    row: sqlite3.Row
    attempt: sqlite3.Row | None
    shown: JobShown
    spec: JobSpec
    attempts: tuple[Attempt, ...]
    now: Now
    pid: int | None


@dataclass(frozen=True)
class Answer:
    """The explanation: a headline, the checks, and for a failed job the last lines of its log."""

    headline: str
    findings: tuple[Finding, ...]
    log: tuple[str, ...] = ()


def why(options: Namespace) -> int:
    """Prints the explanation."""
    with opened(options, foreign=True) as store:
        asked = _asked(store, job_meant(store, options.job))
        answer = Answer(_headline(asked.shown), tuple(_findings(asked)), _last_lines(asked))
    if options.json:
        sys.stdout.write(_to_json(asked, answer))
    else:
        brief = _has_failed(asked) and not options.verbose
        sys.stdout.write(_to_text(asked, answer, brief=brief))
    return 0


def _asked(store: Store, job_id: int) -> Asked:
    pid = pid_of(store)
    with store.one_moment():
        row = job_of(store, job_id)
        unsettled = store.unsettled()
        context = context_of(store, unsettled, is_up=pid is not None or store.foreign is not None)
        newest = store.newest_attempts([job_id]).get(job_id)
        shown = jobs.shown(row, newest, context)
        shown = replace(shown, reason=shown.reason and masked(shown.reason))
        attempts = tuple(context.open.get(one["id"]) or look_at(store, one) for one in unsettled)
    return Asked(store, row, newest, shown, JobSpec.from_json(row["spec"]), attempts, context.now, pid)


def _headline(job: JobShown) -> str:
    state = outcome_words(job.outcome, job.exit_code, job.signal) if job.outcome else job.state
    more = explanation(job.reason, job.exit_code, job.signal)
    reason = f": {more}" if more else ""
    return f"job {job.id} {'' if job.outcome else 'is '}{state}{reason}"


def _findings(asked: Asked) -> Iterator[Finding]:
    state = JobState(asked.shown.state)
    host = asked.store.foreign.name if asked.store.foreign else None
    yield checks.scheduler(asked.pid, host, waits=state in WAITING)
    if state in WAITING:
        yield from _of_waiting(asked, state)
    elif state is JobState.FINISHED:
        yield from _of_finished(asked)
    else:
        yield from _of_running(asked)
    yield from (warn("seen", warning, "") for warning in asked.shown.warnings)
    yield from _of_logs(asked)


def _of_waiting(asked: Asked, state: JobState) -> Iterator[Finding]:
    store, row, spec = asked.store, asked.row, asked.spec
    if state is JobState.HELD:
        yield checks.held(row["id"], row["held_by"], asked.shown.reason)
    yield from map(of_trouble, troubles_of(store))
    yield ok("need", need_now(store, row)[1])
    if store.foreign is None:  # processes, files and conda must be checked on the scheduler's host
        yield from _of_gpus(asked)
        conda_sh = started_with(store).conda_sh
        yield from checks.environment(spec, conda_of(spec, conda_sh), conda_sh)
        yield checks.script(spec)
    if state is JobState.QUEUED:
        yield checks.order(row["priority"], *store.before(row, _NAMED))
    yield from checks.retry(row["id"], _wait_s(asked), row["launch_failures"])
    yield from _of_line(asked)


def _wait_s(asked: Asked) -> float | None:
    at = asked.row["not_before_boot"]
    return None if at is None or asked.row["boot_id"] != asked.now.boot_id else at - asked.now.boot


def _of_gpus(asked: Asked) -> Iterator[Finding]:
    store, spec = asked.store, asked.spec
    rows = store.gpus()
    if not rows:
        yield bad("GPUs", "none is known yet", "`start` detects them; `doctor` shows what it would find")
        return
    from gpu_scheduler.doctor import seen  # also imports the attribution of processes

    limits = started_with(store).limits
    views = seen.views(rows, wished_pauses(store), asked.attempts, limits, asked.now)
    need, _ = need_now(store, asked.row)
    yield checks.placing(need, spec.allowed, views, limits)
    yield from checks.unmanaged(spec.allowed, [view.index for view in views])
    for view in views:
        holders = {a.job_id for a in asked.attempts if view.uuid in a.gpus and a.released_at is None}
        yield checks.gpu(view, need, spec.allowed, limits, holders)
    sampled = max((row["sampled_at"] for row in rows if row["sampled_at"] is not None), default=None)
    if asked.pid is None and sampled is not None:
        yield warn("values", f"the GPUs were last sampled {ago(sampled, asked.now.wall)}", "")


def _of_line(asked: Asked) -> Iterator[Finding]:
    row = asked.row
    where = asked.store.line_of(row["id"])
    path = str(row["source"]).partition(":")[2]
    bad_lines = [(one["number"], one["problem"]) for one in asked.store.malformed() if one["path"] == path]
    number = None if where is None else where["number"]
    near = [one for one in bad_lines if number is not None and abs(one[0] - number) <= _NEAR]
    place = None if where is None else (where["path"], where["number"])
    wait = LineWait.from_json(row["line_wait"]) if row["line_wait"] else None
    yield from checks.line(row["source"], place, wait, near, len(bad_lines))


def _of_running(asked: Asked) -> Iterator[Finding]:
    job = asked.shown
    gpus = ", ".join(map(str, job.gpus))
    since = f", started {ago(job.started_at, asked.now.wall)}" if job.started_at is not None else ""
    follow = f"`logs {job.id} -f` follows its output"
    if job.session:
        follow = f"`attach {job.id}` opens its session, {follow}"
    yield ok("runs", f"on GPU {gpus}{since}; {follow}")
    memory = memory_words(job.peaks, job.vram_declared)
    if memory:
        yield ok("memory", f"peak so far {memory}")


def _of_finished(asked: Asked) -> Iterator[Finding]:
    job = asked.shown
    again = f"`retry {job.id}` runs it again"
    if job.outcome == Outcome.COMPLETED.value:
        yield ok("end", f"it exited with 0; {again}")
        return
    told = job.reason or outcome_words(job.outcome or "ended", job.exit_code, job.signal)
    if job.outcome not in FAILED:
        yield warn("end", told, again)
        return
    found = _oom_remedy(asked, told) or remedy(told)
    yield bad("end", told, f"{found}; then {again}" if found else again)
    if asked.attempt is not None:
        folder = asked.store.home.attempt(job.id, asked.attempt["number"], asked.attempt["token"])
        yield checks.by_hand(str(folder))


def _oom_remedy(asked: Asked, told: str) -> str | None:
    """Returns the advice if the job ran out of GPU memory, judged by its log or else by its reason."""
    from gpu_scheduler.core.oom import cuda_oom  # compiling its regular expressions takes 20 ms

    tail = tail_of(asked.shown.log)
    if asked.attempt is None or cuda_oom(tail or told) is None:
        return None
    ended_at = asked.shown.finished_at or asked.now.wall
    return oom_remedy(oom_case(asked.store, asked.attempt, asked.spec, ended_at))


def _of_logs(asked: Asked) -> Iterator[Finding]:
    job = asked.shown
    if job.log is not None:
        there = os.path.exists(job.log)
        yield ok("log", job.log) if there else warn("log", f"{job.log} no longer exists", "")
    else:
        yield ok("log", "none: the job was never started")
    told = [one for one in of_job(asked.store, job.id) if one.kind != JobState.RUNNING]
    for event in told[-_ABOUT_IT:]:
        yield ok("events", dated(event, started_with(asked.store).tolerance))


def _has_failed(asked: Asked) -> bool:
    """Returns whether the job failed, or is held because it was interrupted."""
    return asked.shown.outcome in FAILED or asked.row["held_by"] == Outcome.INTERRUPTED.value


def _last_lines(asked: Asked) -> tuple[str, ...]:
    """Returns the last lines of a failed job's log; the logs of other jobs are not opened."""
    if not _has_failed(asked):
        return ()
    return tuple(map(masked, text_lines(tail_of(asked.shown.log))[-LAST_LINES:]))


def _to_text(asked: Asked, answer: Answer, *, brief: bool) -> str:
    """Formats the explanation; brief: only the remedies and the problems apart from the end itself."""
    columns = screen_of_stdout().width
    headline = visible(shortened(unrepeated(answer.headline, answer.log)))
    lines = [*_rows(headline, columns), ""]
    told = [*answer.log, asked.shown.reason or ""]
    findings = [replace(one, says=unrepeated(one.says, told)) for one in answer.findings]
    if brief:
        remedies = [one.remedy for one in findings if one.check in _ENDS and one.remedy]
        lines += [row for remedy in remedies for row in _rows(f"What to do: {visible(remedy)}", columns)]
        findings = [one for one in findings if one.check in _BESIDE and one.grade != "ok"]
    lines += [finding_line(finding, columns) for finding in findings]
    if answer.log:
        output = [*dropwhile(lambda line: line.startswith("# "), answer.log)]  # without the runner's header
        end = [f"  {visible(shortened(line))}" for line in output]
        lines += ["", "End of its log:", *end] if end else ["", "It printed nothing."]
    if brief:
        lines += ["", f"`why {asked.shown.id} -v` shows every check."]
    return "\n".join(lines) + "\n"


def _rows(text: str, columns: int | None) -> list[str]:
    return [text] if columns is None else rows(text, columns)


def _to_json(asked: Asked, answer: Answer) -> str:
    job = asked.shown
    value: Mapping[str, object] = {
        "now": asked.now.wall,
        "job": job.id,
        "state": job.state,
        "outcome": job.outcome,
        "reason": job.reason,
        "recorded": job.recorded,
        "scheduler": asked.pid,
        "checks": masked_values([finding_object(finding) for finding in answer.findings]),
        "log_end": list(answer.log),
    }
    return json.dumps(value, indent=1) + "\n"
