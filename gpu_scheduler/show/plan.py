"""Forecasts when the jobs of the queue start and end, with or without a running scheduler.

Also tells which items of a Redis queue would start at once. `plan` and `eta` show the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.explain.progress import output_option
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.job_spec import ENGINES, JobSpec
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.actions import Reserve, Start
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.forecast import Forecast, JobForecast, WaitingJob, forecast
from gpu_scheduler.core.scheduling.history import UNKNOWN, Estimate, RunTimeKey
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, with_start_interval
from gpu_scheduler.core.text.formatting import (
    and_more,
    count_noun,
    format_duration,
    format_elapsed,
    format_eta,
    format_jobs,
    masked_json,
    picked,
    safe_text,
)
from gpu_scheduler.show.gpu_views import foreign_claims, read_locks
from gpu_scheduler.show.job_text import finish_text, percent_text, progress_object, short_text
from gpu_scheduler.show.job_views import JobView, context_of, health_issues_of, job_view, with_progress
from gpu_scheduler.show.layout import Cell, Column, TableRow, render_table, wrap_text
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.round_facts import round_facts
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.show.tables import title
from gpu_scheduler.show.wait_text import held_text, job_reason_text
from gpu_scheduler.store.attempt_history import RunTimesReader
from gpu_scheduler.store.job_lists import open_jobs, state_counts
from gpu_scheduler.store.pending_groups import waiting_jobs
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.show.status import ProgressReport


#: Number of queued jobs that are forecast unless all are asked for. More take longer than a second.
MAX_JOBS = 1000
#: The requests after which a waiting job does not start.
_LEAVING = ("cancel", "hold")
#: The claims of attempts that have not begun on their engine.
_WAITING = ("none", "accepted")
#: The position of the first item of a Redis queue, behind all jobs of its priority.
_BEHIND = 1 << 60


class ForecastJob(Struct, frozen=True):
    """A running or waiting job.

    forecast: None if it has none; gpus: the indices of its expected GPUs; engine: None if it runs on this
    machine.
    """

    job: JobView
    forecast: JobForecast | None
    gpus: tuple[int, ...] = ()
    engine: str | None = None


class ForecastView(Struct, frozen=True):
    """The forecast at `now` (seconds since 1970): first the running jobs, then the waiting ones in order.

    scheduler_pid: None if no scheduler is running. idle_share: the part of the GPU time until idle_until,
    when the last waiting job starts, in which no job runs on a GPU; None if no job has to wait. omitted: the
    number of queued jobs behind those that were forecast. health_issues: those that block starts. pooled: the
    estimate with which the jobs count that have none of their own.
    """

    now: float
    scheduler_pid: int | None = None
    jobs: tuple[ForecastJob, ...] = ()
    idle_share: float | None = None
    idle_until: float | None = None
    omitted: int = 0
    health_issues: tuple[HealthIssue, ...] = ()
    pooled: Estimate = UNKNOWN


class _Queue(Struct, frozen=True):
    """The queue at one moment.

    jobs: the running, queued and held ones; ending: the ids of attempts whose commands have ended, although
    that is not recorded yet; on: where jobs run whose lines do not say so.
    """

    facts: Facts
    jobs: Sequence[JobView]
    waiting: Sequence[WaitingJob]
    ending: Sequence[int]
    indices: Mapping[str, int]
    omitted: int
    on: str


def forecast_queue(location: Location, *, all_jobs: bool = False) -> ForecastView:
    """Returns the forecast. Raises StoreNotFoundError before the first start.

    all_jobs: whether to forecast more than the first MAX_JOBS queued jobs.
    """
    with open_store(location, read_only=True) as store:
        pid = scheduler_pid_of(store)
        queue = _read_queue(store, pid, None if all_jobs else MAX_JOBS)
        now = queue.facts.now.wall
        jobs = with_progress(store, queue.jobs, now)
        issues = tuple(issue for issue in health_issues_of(store) if issue.blocks_starts)
        pooled = RunTimesReader(store).run_times(store.marks()).pooled()
    found = forecast(_with_remaining_times(queue.facts, jobs), queue.waiting, queue.ending, pooled)
    shown = _forecast_jobs(jobs, queue, found)
    return ForecastView(now, pid, shown, found.idle_share, found.idle_until, queue.omitted, issues, pooled)


def _read_queue(store: Store, pid: int | None, limit: int | None) -> _Queue:
    locks = read_locks(store)
    with store.snapshot():
        active = store.active_attempts()
        queued = open_jobs(store, (JobState.QUEUED,), limit)
        records = [*open_jobs(store, tuple(ACTIVE)), *queued, *open_jobs(store, (JobState.HELD,), limit)]
        newest = store.newest_attempts(job.id for job in records)
        context = context_of(store, (job.id for job in records), active, is_up=pid is not None)
        here = store.recorded_options().on
        # An engine decides when the jobs start that wait there or will wait there.
        waiting = [
            one for one in waiting_jobs(store, context.now, limit) if one.resources.engine(here) is None
        ]
        attempts = [context.open_attempts.get(one.id) or observe_attempt(store, one) for one in active]
        attempts = [
            one for one in attempts if one.executor not in ENGINES or one.status.claim not in _WAITING
        ]
        facts = round_facts(store, attempts, context.now, foreign_claims(store, locks, attempts, pid))
        count = state_counts(store).get(JobState.QUEUED, 0)
    jobs = [job_view(job, newest.get(job.id), context) for job in records]
    leaving = {job_id for job_id, verb in context.open_requests.items() if verb in _LEAVING}
    running = {job.record.id for job in jobs if job.record.state in ACTIVE}
    return _Queue(
        facts,
        [job for job in jobs if job.record.state is not JobState.FINISHED],
        [one for one in waiting if one.job.job_id not in leaving],
        [one.id for one in attempts if one.state.is_open and one.job_id not in running],
        context.indices,
        count - len(queued),
        here,
    )


def items_to_start(store: Store, items: Sequence[tuple[JobSpec, float]]) -> list[int]:
    """Returns the indices of the items that the next round would start here, or for which it would preempt.

    items: those of a Redis queue, in their order, each with the time of its submission. The jobs of this
    queue count too, those that are not confirmed included.
    """
    pid = scheduler_pid_of(store)
    if pid is None or not items:
        return []
    locks, now = read_locks(store), Clock().now()
    with store.snapshot():
        attempts = [observe_attempt(store, one) for one in store.active_attempts()]
        facts = round_facts(store, attempts, now, foreign_claims(store, locks, attempts, pid))
        waiting = waiting_jobs(store, now, MAX_JOBS, 0, with_unconfirmed=True)
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    jobs = [
        (one.job, one.resources)
        for one in waiting
        if one.not_before <= now.wall and one.job.job_id not in reserved
    ]
    for index, (spec, at) in enumerate(items):
        key = RunTimeKey(spec.identity, spec.to_json())
        job = QueuedJob(-1 - index, spec.priority or 0, _BEHIND + index, at, now.wall, key)
        jobs.append((job, ResourceSpec.of(spec, learn_needs=store.learning)))
    groups: dict[ResourceSpec, list[QueuedJob]] = {}
    for job, resources in sorted(jobs, key=lambda one: queue_key(one[0])):
        groups.setdefault(resources, []).append(job)
    pending = tuple(PendingGroup(resources, tuple(found)) for resources, found in groups.items())
    facts = replace(facts, pending_groups=pending)
    actions = with_start_interval(place_jobs(facts), facts)
    return sorted(-1 - one.job_id for one in actions if isinstance(one, (Start, Reserve)) and one.job_id < 0)


def _with_remaining_times(facts: Facts, jobs: Iterable[JobView]) -> Facts:
    """Returns the facts with the time that each running job still takes, as far as its progress shows it."""
    left = {job.record.id: job.progress.remaining_s for job in jobs if job.progress is not None}
    attempts = tuple(one.seen(remaining_s=left.get(one.job_id)) for one in facts.attempts)
    return replace(facts, attempts=attempts)


def _forecast_jobs(jobs: Iterable[JobView], queue: _Queue, found: Forecast) -> tuple[ForecastJob, ...]:
    """Returns the jobs with their forecasts, in the order of their starts; those without one come last."""
    only_gpus = {one.job.job_id for one in queue.waiting if not one.parents}
    shown = []
    for job in jobs:
        expected = found.jobs.get(job.record.id)
        if expected is None and job.record.id in only_gpus:
            job = job._replace(wait=found.reasons.get(job.record.spec_key, job.wait))
        gpus = () if expected is None else expected.gpus
        indices = tuple(sorted(queue.indices.get(uuid, -1) for uuid in gpus))
        engine = ResourceSpec.from_key(job.record.spec_key).engine(queue.on)
        shown.append(ForecastJob(job, expected, indices, engine))
    return tuple(sorted(shown, key=_order))


def _order(shown: ForecastJob) -> tuple[bool, bool, float]:
    expected, is_waiting = shown.forecast, shown.job.record.state not in ACTIVE
    return expected is None, is_waiting, math.inf if expected is None else expected.start_at


# Formats the progress of jobs and the time at which they will finish, for `eta`.


_ETA_COLUMNS = (
    Column("Job", is_right=True), Column("Done", is_right=True), Column("Time", is_right=True),
    Column("ETA", is_right=True), Column("Finish"), Column("What", is_flexible=True),
)  # fmt: skip


def eta_text(report: ProgressReport, width: int | None) -> str:
    """Formats the progress of jobs as a table with one row per job."""
    if not report.jobs:
        return "No job is running.\n"
    rows = [_eta_row(job, report.now) for job in report.jobs]
    return "\n".join(render_table(_ETA_COLUMNS, rows, width)) + "\n"


def eta_json(report: ProgressReport) -> str:
    """Formats the progress of jobs as JSON, as docs/json.md describes."""
    jobs = [
        {
            **picked(job.record, "id", "name", "state"),
            "started_at": job.started_at,
            "progress": progress_object(job.progress),
        }
        for job in report.jobs
    ]
    return masked_json({"now": report.now, "jobs": jobs}, 1) + "\n"


def unknown_text(job: JobView) -> str:
    """Returns why nothing is known of the progress of a job, and the remedy."""
    record = job.record
    if record.state not in ACTIVE and not record.is_unwatched:
        return f"job {record.id} is {record.state}; only a running job has progress"
    return (
        f"nothing shows how far job {record.id} is: neither the last lines of its log nor a checkpoint under"
        f" its {output_option(record.spec)[0]}; a job can report its progress in the file that"
        " $GPU_SCHEDULER_PROGRESS names"
    )


def _eta_row(job: JobView, now: float) -> TableRow:
    shown = job.progress
    left, finish = (None, None) if shown is None else (shown.remaining_s, shown.finish_at)
    cells = (
        str(job.record.id),
        "" if shown is None else percent_text(shown) or short_text(shown),
        "" if job.started_at is None else format_elapsed(now - job.started_at),
        "" if left is None else format_eta(left),
        "" if finish is None else finish_text(finish, now),
        safe_text(title(job)),
    )
    return TableRow([Cell(text or "?") for text in cells])


#: Maximum number of jobs without an estimate that are listed.
_MAX_NAMED = 8
_COLUMNS = (
    Column("Job", is_right=True), Column("Start"), Column("In", is_right=True), Column("End"),
    Column("In", is_right=True), Column("90%"), Column("GPUs"), Column("What", is_flexible=True),
)  # fmt: skip
_REASON_COLUMNS = (Column("Job", is_right=True), Column("No forecast"))


def to_text(view: ForecastView, width: int | None) -> str:
    """Formats a table with one row per job, and notes. width: the maximum width, None = unlimited."""
    expected = [one for one in view.jobs if one.forecast is not None]
    others = [one for one in view.jobs if one.forecast is None]
    blocks = []
    if expected:
        blocks.append(render_table(_COLUMNS, [_row(one, view.now) for one in expected], width))
    if others:
        rows = [TableRow([Cell(str(one.job.record.id)), Cell(_why_not(one))]) for one in others]
        blocks.append(render_table(_REASON_COLUMNS, rows, width))
    if not view.jobs:
        blocks.append(["No job is running or waiting."])
    notes = [line for note in _notes(view) for line in ([note] if width is None else wrap_text(note, width))]
    return "\n\n".join("\n".join(block) for block in [*blocks, notes] if block) + "\n"


def _row(one: ForecastJob, now: float) -> TableRow:
    expected = one.forecast
    assert expected is not None
    is_running = one.job.record.state in ACTIVE
    cells = (
        str(one.job.record.id),
        finish_text(expected.start_at, now),
        "" if is_running else _range_text(expected.start_at, expected.start_upper_at, now),
        finish_text(expected.end_at, now),
        _in_text(expected.end_at - now),
        "?" if expected.end_upper_at is None else finish_text(expected.end_upper_at, now),
        ",".join(map(str, one.gpus)) or "-",
        title(one.job),
    )
    return TableRow([Cell(text) for text in cells])


def _range_text(at: float, upper_at: float | None, now: float) -> str:
    """Formats the time until a start. upper_at: if every run takes long; None if it then never starts."""
    usual, upper = _in_text(at - now), "?" if upper_at is None else _in_text(upper_at - now)
    return usual if usual == upper else f"{usual} to {upper}"


def _in_text(seconds: float) -> str:
    return "now" if seconds < 1 else format_eta(seconds)


def _why_not(one: ForecastJob) -> str:
    record = one.job.record
    reason = held_text(one.job) if record.state == "held" else job_reason_text(one.job) or record.state
    decides = one.engine is not None and record.state != "held" and not one.job.infeasible
    return safe_text(f"{(one.engine or '').capitalize()} decides; {reason}" if decides else reason)


def _notes(view: ForecastView) -> Iterator[str]:
    forecasts = [(one.job.record.id, one.forecast) for one in view.jobs if one.forecast is not None]
    unknown = sorted(job_id for job_id, expected in forecasts if not expected.has_estimate)
    if forecasts:
        yield (
            "The times are those if every run takes the median time; what follows `to`, and 90%, if every run"
            " takes as long as nine of ten such runs at most."
        )
    if unknown:
        how = "10 minutes, or as long again as the time so far, which is a guess"
        if view.pooled.predicted_s is not None:
            median, upper = map(format_duration, (view.pooled.predicted_s, view.pooled.upper_s))
            how = f"the runs of all jobs here (median {median}, nine of ten at most {upper})"
        takes = "takes, so it counts" if len(unknown) == 1 else "take, so they count"
        named = and_more(format_jobs(unknown[:_MAX_NAMED]), len(unknown) - _MAX_NAMED)
        yield f"No earlier run shows how long {named} {takes} as {how}."
    if any(one.job.record.state not in ACTIVE for one in view.jobs if one.forecast is not None):
        yield "Jobs that are submitted later are not included; they can delay these starts."
    if view.idle_share is not None and view.idle_until is not None:
        share, until = f"{100 * view.idle_share:.0f}%", finish_text(view.idle_until, view.now)
        yield f"The GPUs are idle for {share} of the time until the last job starts ({until})."
    if view.omitted:
        be = "is" if view.omitted == 1 else "are"
        yield f"{count_noun(view.omitted, 'queued job')} behind these {be} not shown (plan --all)."
    for issue in view.health_issues:
        yield f"No job starts until this is resolved: {safe_text(str(issue))}"
    if view.scheduler_pid is None and view.jobs:
        yield "No scheduler is running. The times assume that one starts now."


def to_json(view: ForecastView) -> str:
    """Formats the forecast as JSON, as docs/json.md describes."""
    value = {
        "now": view.now,
        "scheduler": view.scheduler_pid,
        "jobs": [_job_object(one) for one in view.jobs],
        "idle_share": None if view.idle_share is None else round(view.idle_share, 4),
        "idle_until": view.idle_until,
        "omitted": view.omitted,
    }
    return masked_json(value, 1) + "\n"


def _job_object(one: ForecastJob) -> dict[str, Any]:
    record, expected = one.job.record, one.forecast
    return {
        **picked(record, "id", "name", "state"),
        "start_at": None if expected is None else expected.start_at,
        "end_at": None if expected is None else expected.end_at,
        "start_p90_at": None if expected is None else expected.start_upper_at,
        "end_p90_at": None if expected is None else expected.end_upper_at,
        "gpus": list(one.gpus),
        "has_estimate": None if expected is None else expected.has_estimate,
        "no_forecast": _why_not(one) if expected is None else None,
    }
