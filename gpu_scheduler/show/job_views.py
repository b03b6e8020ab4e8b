"""Builds the view of a job from its record, its newest attempt and the status of that attempt's folder.

Also defines the other values that `status` shows, both as text and as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.clock import Clock
from gpu_scheduler.config import NOTIFY_PREFIX
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.job import ActiveAttempt, EngineStatus, Job
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import ACTIVE, FAILED, WAITING, AttemptState, JobState, Outcome
from gpu_scheduler.health.storage import LOG_FOLDER_KEY, find_issues, unusable_file_issue
from gpu_scheduler.show.store_access import requested_verbs
from gpu_scheduler.store.job_lists import ancestor_that_needs_user, children, failed_ancestors, parents_of
from gpu_scheduler.store.jobs_files import LineLocation, line_of
from gpu_scheduler.store.moved_or_copied import original_of_copy
from gpu_scheduler.store.pending_groups import queue_reservation_record, victims_by_job, wait_reasons
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.attempts.job_progress import ProgressReader
    from gpu_scheduler.core.explain.progress import JobProgress
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse
    from gpu_scheduler.core.model.gpu import Gpu, GpuClaim
    from gpu_scheduler.core.model.job import Attempt, AttemptStatus, StopRequest
    from gpu_scheduler.core.model.job_spec import Parent
    from gpu_scheduler.core.model.values import Now
    from gpu_scheduler.store.data_dir import DataDir
    from gpu_scheduler.store.jobs_files import JobsFileRecord, MalformedLineRecord
    from gpu_scheduler.store.pending_groups import QueueReservationRecord

    AttemptWarning = Overuse | MisplacedProcess | str


#: States of a GPU, in order of precedence.
LOST, PAUSED, SUSPECT, CLAIMED, BUSY, RESERVED, AVAILABLE = (
    "lost",
    "paused",
    "suspect",
    "claimed",
    "busy",
    "reserved",
    "available",
)


class GpuView(Struct, frozen=True):
    """A managed GPU.

    share: the allocated thousandths; jobs: the ids of the jobs to which the GPU is allocated; allocated_mib:
    the memory allocated to them, None if unknown; has_declared_memory: whether any of them declared memory.
    claims: the claims of other programs; claims_problem: why the GPU cannot be claimed, None if it can.
    reserved_for: the ids of the jobs for which the GPU is reserved. pause_reason: why the GPU is paused, None
    if it is not or a command did it.
    """

    record: Gpu
    state: str
    share: int
    jobs: tuple[int, ...] = ()
    allocated_mib: int | None = 0
    has_declared_memory: bool = False
    claims: tuple[GpuClaim, ...] = ()
    claims_problem: str | None = None
    reserved_for: tuple[int, ...] = ()
    pause_reason: str | None = None


#: The memory use by GPU index of a job that uses no memory.
_NO_MEMORY: Mapping[int, int] = {}


class JobView(NamedTuple):
    """A job and its newest attempt, with the changes that the next round will record.

    is_recorded: False if there are such changes. wait: why the job waits, None if it does not wait. due_in_s:
    the seconds until `wait.due_at`, None if unknown. infeasible: whether the job is queued and could not fit
    even on empty GPUs; False while it waits for other jobs, because it is not compared with the GPUs then.
    parents: the jobs on which it depends, sorted by id. gpus: the indices of the attempt's GPUs. peaks: its
    peak MiB by index. memory_used: its current MiB by GPU index, which only the scheduler can fill in.
    warnings: the warnings about the attempt; a plain string describes an anomaly in its folder. last_line:
    the last output line of a running job, None if there is no output or the caller did not ask for it.
    progress: how far a running job is, None if the caller did not ask for it. stop: the request because of
    which a job is being stopped, None if it is unknown. stop_in_s: the seconds that are left of its grace
    period, None if unknown. engine: what its engine last said of the attempt; None on this machine. as_of:
    when the view was made, in seconds since 1970.
    """

    record: Job
    attempt: Attempt | None = None
    is_recorded: bool = True
    wait: WaitReason | None = None
    due_in_s: float | None = None
    infeasible: bool = False
    parents: tuple[Parent, ...] = ()
    gpus: tuple[int, ...] = ()
    peaks: Mapping[int, int] = _NO_MEMORY
    memory_used: Mapping[int, int] = _NO_MEMORY
    warnings: tuple[AttemptWarning, ...] = ()
    last_line: str | None = None
    progress: JobProgress | None = None
    stop: StopRequest | None = None
    stop_in_s: float | None = None
    engine: EngineStatus | None = None
    as_of: float = 0.0

    @property
    def started_at(self) -> float | None:
        """When the newest attempt or the adopted process started, in seconds since 1970; None if unknown."""
        if self.attempt is None and self.record.adopted is not None:
            return self.record.adopted.started_at
        return None if self.attempt is None else self.attempt.started_at

    @property
    def is_running(self) -> bool:
        """True if the job has started and not ended, watched or not."""
        return self.started_at is not None and (self.record.state in ACTIVE or self.record.is_unwatched)

    @property
    def window_closed(self) -> bool:
        """True if the job is still running although its Screen window was closed."""
        return self.attempt is not None and self.attempt.window_closed and self.record.state in ACTIVE

    @property
    def pid(self) -> int | None:
        """The process from which those of a running job descend, or the adopted one; None if not running."""
        if self.attempt is None or self.record.state not in ACTIVE:
            return None
        return self.attempt.watched_pid or self.attempt.runner_pid

    @property
    def session(self) -> str | None:
        """The Screen session in which the job runs; None if it has none or its window was closed."""
        is_shown = self.attempt is not None and self.record.state in ACTIVE and not self.window_closed
        return self.attempt.session if self.attempt is not None and is_shown else None

    @property
    def log(self) -> str | None:
        """The path of the newest attempt's log, or of that of an adopted process which is not watched yet."""
        if self.attempt is None:
            return None if self.record.adopted is None else self.record.adopted.log
        return self.attempt.log

    @property
    def is_without_log(self) -> bool:
        """True if the job is or was an adopted process whose output does not go to a file."""
        was_watched = self.attempt is not None and self.attempt.watched_pid is not None
        return self.log is None and (was_watched or self.record.adopted is not None)

    @property
    def vram_declared(self) -> int | None:
        """MiB that the newest attempt declared on each GPU; None if it declared no memory."""
        return None if self.attempt is None else self.attempt.vram_declared


class StatusReport(Struct, frozen=True):
    """The contents of `status` at `now` (seconds since 1970).

    pid: the scheduler's pid, None if no scheduler is running; counts: the number of all jobs in each recorded
    state, shown or not; hidden_count: the number of finished jobs that the report leaves out because they are
    cleared; unsuccessful_counts: the number of all other finished jobs with each outcome except completed;
    is_failed_only: whether the report covers only failed jobs; skipped: the number of skipped jobs that such
    a report leaves out; redis_problem: what keeps this scheduler from its Redis queue, or None; unserved: the
    number of open attempts on each engine that this scheduler does not use.
    """

    now: float
    pid: int | None
    state_file: str
    data_dir: str
    gpus: tuple[GpuView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unsuccessful_counts: Mapping[str, int] = field(default_factory=dict)
    hidden_count: int = 0
    malformed: tuple[MalformedLineRecord, ...] = ()
    jobs_files: tuple[JobsFileRecord, ...] = ()
    health_issues: tuple[HealthIssue, ...] = ()
    is_failed_only: bool = False
    skipped: int = 0
    redis_problem: str | None = None
    unserved: Mapping[str, int] = field(default_factory=dict)

    def listed_count(self, state: JobState) -> int:
        """Returns the number of jobs in a recorded state, without hidden ones."""
        hidden = self.hidden_count if state is JobState.FINISHED else 0
        return self.counts.get(state.value, 0) - hidden

    def failed_only(self, limit: int | None) -> StatusReport:
        """Returns a report of only the failed jobs. limit: the maximum number of jobs, None means all."""
        jobs = tuple(job for job in self.jobs if job.record.outcome in FAILED)
        recorded = [str(job.record.outcome) for job in jobs if job.is_recorded]
        return replace(
            self,
            jobs=jobs[:limit],
            counts={JobState.FINISHED.value: len(recorded)},
            unsuccessful_counts={outcome: recorded.count(outcome) for outcome in recorded},
            hidden_count=0,
            is_failed_only=True,
            skipped=self.unsuccessful_counts.get(Outcome.SKIPPED.value, 0),
        )


_PARENTS = WaitReason(WaitKind.PARENTS)


class OpenStop(Struct, frozen=True):
    """A request to stop an attempt. ends_at: the end of the grace period, in seconds since boot, if known."""

    request: StopRequest
    ends_at: float | None


def open_stops(attempts: Iterable[ActiveAttempt], now: Now) -> dict[int, OpenStop]:
    """Returns the requests to stop these attempts that are open, by job id."""
    stops = {}
    for attempt in attempts:
        request = attempt.open_stop or attempt.status.stop
        if request is not None and attempt.state.is_open:
            is_known = attempt.stopping_boot is not None and attempt.boot_id == now.boot_id
            ends_at = (attempt.stopping_boot or 0.0) + request.grace_s if is_known else None
            stops[attempt.job_id] = OpenStop(request, ends_at)
    return stops


class ViewContext(Struct, frozen=True):
    """The data, besides a job's own records, on which the view of a job depends.

    wait_reasons: why the jobs of each spec key wait; default_wait: why all other jobs wait; parents: the
    parents of each shown job that has some, by job id; indices: the index of each GPU, by UUID;
    open_requests: the verb of each job's newest pending request, by job id; is_recovery_requested: whether a
    recovery of all interrupted jobs is pending; open_attempts: the facts of each open attempt, from its row
    and folder, by attempt id; victims: the jobs that are preempted for each job with reserved GPUs, by the id
    of that job; reservation: the one by queue order; stops: the open requests to stop attempts, by job id;
    *_retries: the defaults for jobs whose line sets no value; is_scheduler_up: whether a scheduler runs;
    data_dir: where the folders of attempts that have ended are, None if nobody needs them.
    """

    now: Now
    wait_reasons: Mapping[str, WaitReason] = field(default_factory=dict)
    default_wait: WaitKind = WaitKind.NOT_TRIED
    parents: Mapping[int, tuple[Parent, ...]] = field(default_factory=dict)
    indices: Mapping[str, int] = field(default_factory=dict)
    open_requests: Mapping[int, str] = field(default_factory=dict)
    is_recovery_requested: bool = False
    open_attempts: Mapping[int, ActiveAttempt] = field(default_factory=dict)
    victims: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    reservation: QueueReservationRecord | None = None
    stops: Mapping[int, OpenStop] = field(default_factory=dict)
    oom_retries: int = 0
    fail_retries: int = 0
    is_scheduler_up: bool = True
    data_dir: DataDir | None = None


def job_view(job: Job, attempt: Attempt | None, context: ViewContext) -> JobView:
    """Returns the view of a job in its current state, even if the store does not have that state yet."""
    recorded, wait = job, _wait_reason(job, attempt, context)
    is_in_queue = job.state is JobState.QUEUED and not job.unmet_parents
    of_group = context.wait_reasons.get(job.spec_key) if is_in_queue else None
    fact = None if attempt is None else context.open_attempts.get(attempt.id)
    if attempt is not None and fact is not None:
        attempt = _with_status(attempt, fact.status)
        job, attempt = _with_next_round(job, attempt, fact, context)
        if job is not recorded and job.state not in ACTIVE:
            # A request concerns the end of a job only if the job is held because of it.
            wait = _requested(job, context) if job.state is JobState.HELD else None
    if attempt is not None and job.state is JobState.STARTING:
        wait = _start_delay(attempt, None if fact is None else fact.status.engine)
    stop = context.stops.get(job.id) if job.state is JobState.STOPPING else None
    return JobView(
        job,
        attempt,
        is_recorded=job is recorded,
        stop=None if stop is None else stop.request,
        stop_in_s=None if stop is None or stop.ends_at is None else stop.ends_at - context.now.boot,
        wait=wait,
        due_in_s=_due_in_s(wait, context),
        parents=context.parents.get(job.id, ()),
        infeasible=of_group is not None and of_group.is_infeasible,
        gpus=() if attempt is None else gpu_indices(attempt, context.indices),
        peaks={} if attempt is None else peaks_by_index(attempt, context.indices),
        warnings=() if attempt is None else warnings(attempt, context.indices, fact),
        engine=None if attempt is None else engine_of(attempt, context),
        as_of=context.now.wall,
    )


def engine_of(attempt: Attempt, context: ViewContext) -> EngineStatus | None:
    """Returns what the engine of an attempt last said of it, or empty fields; None if it has no engine.

    The folder of an attempt keeps that after its end.
    """
    if not attempt.is_on_engine:
        return None
    fact, found = context.open_attempts.get(attempt.id), None
    if fact is not None:
        found = fact.status.engine
    elif context.data_dir is not None:
        from gpu_scheduler.attempts.folder import ENGINE_FILE, FolderReader, parse_engine

        folder = context.data_dir.attempt_folder(attempt)
        found = FolderReader(folder, attempt.token).read(ENGINE_FILE, parse_engine)
    return found or EngineStatus("")


def observed_job(store: Store, job: Job) -> Job:
    """Returns a job in its current state, even if the store does not have that state yet."""
    if job.state not in ACTIVE:
        return job
    attempt = next(
        (one for one in store.active_attempts() if one.job_id == job.id and one.state.is_open), None
    )
    if attempt is None:
        return job
    started = store.recorded_options()
    context = ViewContext(
        Clock().now(),
        open_attempts=_observe_open(store, [attempt]),
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
    )
    return job_view(job, attempt, context).record


#: What to do about a reason for which a job would wait in Slurm until somebody does something.
_ENGINE_REMEDIES = {
    "PartitionTimeLimit": "its timeout is above that of the partition; cancel it and give it a shorter one",
    "JobHeldUser": "`scontrol release` lets it run",
    "JobHeldAdmin": "an administrator holds it",
}


def _start_delay(attempt: Attempt, engine: EngineStatus | None) -> WaitReason | None:
    """Returns why an attempt has no runner yet; None while that is normal. engine: what its engine says."""
    launches = attempt.launch_count
    if attempt.is_on_engine:
        what = "not submitted yet" if engine is None else engine.reason or engine.state
        what = "; ".join(filter(None, [what, _ENGINE_REMEDIES.get(what)]))
        number = "" if engine is None or not engine.native_id else f" (job {engine.native_id})"
        return WaitReason(WaitKind.IN_ENGINE, f"{attempt.executor.capitalize()}{number}: {what}")
    if launches == 0:
        return WaitReason(WaitKind.SHORTAGE)
    return WaitReason(WaitKind.RELAUNCHED, launches=launches) if launches > 1 else None


def warnings(
    attempt: Attempt, indices: Mapping[str, int], fact: ActiveAttempt | None = None
) -> tuple[AttemptWarning, ...]:
    """Returns the warnings about an attempt.

    They cover memory use above the declared memory, misplaced processes, and anomalies in the attempt folder.
    fact: the observed attempt, None if it was not observed.
    """
    found: list[AttemptWarning] = []
    if attempt.overused_gpus or attempt.misplaced:
        from gpu_scheduler.core.model.event import MisplacedProcess, Overuse

        peaks, budgets = attempt.peaks, attempt.budgets
        share = attempt.share if attempt.vram is None else None
        found += [
            Overuse(attempt.number, indices.get(uuid, -1), peaks.get(uuid, 0), budgets.get(uuid) or 0, share)
            for uuid in attempt.overused_gpus
        ]
        allocated = gpu_indices(attempt, indices)
        found += [
            MisplacedProcess(attempt.number, indices.get(uuid, -1), pid, allocated)
            for uuid, pid in attempt.misplaced
        ]
    if fact is not None and fact.status.claim != "none":
        found += fact.status.anomalies
    return tuple(found)


def peaks_by_index(attempt: Attempt, indices: Mapping[str, int]) -> dict[int, int]:
    """Returns the peak memory use of an attempt in MiB, by GPU index."""
    return {indices.get(uuid, -1): mib for uuid, mib in sorted(attempt.peaks.items())}


def gpu_indices(attempt: Attempt, indices: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the indices of an attempt's GPUs."""
    return tuple(sorted(indices.get(uuid, -1) for uuid in attempt.gpus))


def _retry_is_due(job: Job, context: ViewContext) -> bool:
    """Returns whether the delay after a failed launch is over, so that the job waits only for GPUs."""
    at = job.not_before_boot
    due = at is not None and (at <= context.now.boot or job.boot_id != context.now.boot_id)
    return due and job.state is JobState.QUEUED


def _wait_reason(job: Job, attempt: Attempt | None, context: ViewContext) -> WaitReason | None:
    """Returns why a job waits; None if it neither waits nor has a pending request.

    Of several reasons, the first one that the user can change counts. A job that waits for other jobs is not
    compared with the GPUs, so the reason of its pending group says nothing about it.
    """
    requested = _requested(job, context)
    if requested is not None:
        return requested
    if job.state not in WAITING:
        return None
    if job.state is JobState.HELD:
        return WaitReason(WaitKind.HELD, job.held_by or "")
    if job.unmet_parents:
        return job.line_wait or _PARENTS
    if job.reason and not _retry_is_due(job, context):
        return WaitReason(WaitKind.RETRY_DELAY, due_at=job.not_before_boot)
    if job.adopted is not None:
        return WaitReason(WaitKind.NOT_WATCHED, str(job.adopted.pid))
    if job.line_wait is not None:
        return job.line_wait
    if attempt is not None and attempt.state is AttemptState.ENDED:
        return WaitReason(WaitKind.PROCESSES_LEFT)
    if job.id in context.victims and context.is_scheduler_up:
        return WaitReason(WaitKind.PREEMPTING, victims=context.victims[job.id])
    of_group = context.wait_reasons.get(job.spec_key) or WaitReason(context.default_wait)
    if context.reservation is None or context.reservation.job_id != job.id or not context.is_scheduler_up:
        return of_group
    return _reserved(of_group, context.reservation, context.indices)


def _reserved(
    of_group: WaitReason, reservation: QueueReservationRecord, indices: Mapping[str, int]
) -> WaitReason:
    """Returns the reason of the job with the reservation by queue order. of_group: that of its group."""
    return WaitReason(
        WaitKind.RESERVED,
        need=of_group.need,
        gpus=of_group.gpus,
        reserved=tuple(sorted(indices.get(uuid, -1) for uuid in reservation.gpus)),
        reserved_from=reservation.start_at,
        overtakes=reservation.overtakes,
    )


def _requested(job: Job, context: ViewContext) -> WaitReason | None:
    """Returns the pending request that concerns a job as a wait reason; None if there is none."""
    is_recovered = context.is_recovery_requested and job.is_interrupted
    verb = context.open_requests.get(job.id) or ("recover" if is_recovered else None)
    return None if verb is None else WaitReason(WaitKind.REQUEST, verb)


def _due_in_s(wait: WaitReason | None, context: ViewContext) -> float | None:
    """Returns the seconds until the wait may end; None if unknown, or if no scheduler is running."""
    if wait is None or wait.due_at is None or not context.is_scheduler_up:
        return None
    return wait.due_at - context.now.boot


def _with_status(attempt: Attempt, status: AttemptStatus) -> Attempt:
    """Returns an open attempt with the session and the log path that are recorded in its folder."""
    closed = attempt.window_closed or status.window_open is False
    session, log = None if closed else status.session or attempt.session, attempt.log or status.log
    if (closed, session, log) == (attempt.window_closed, attempt.session, attempt.log):
        return attempt
    return replace(attempt, session=session, window_closed=closed, log=log)


def _with_next_round(
    job: Job, attempt: Attempt, fact: ActiveAttempt, context: ViewContext
) -> tuple[Job, Attempt]:
    """Returns the job and the attempt with the changes that the next round would record."""
    if runs_as_recorded(fact):
        return job, attempt
    from gpu_scheduler.core.scheduling.actions import AttemptChanged
    from gpu_scheduler.core.scheduling.reconcile_attempt import has_unknown_runner, reconcile
    from gpu_scheduler.core.scheduling.settings import Settings

    settings = Settings(oom_retries=context.oom_retries, fail_retries=context.fail_retries)
    # The outcome of an attempt without a known runner depends on a process scan, which front ends do not do.
    # No process is left of an earlier boot.
    is_unknown = has_unknown_runner(fact) and fact.boot_id == context.now.boot_id
    survivors = None if is_unknown else ()
    for action in reconcile(fact.seen(survivors=survivors), context.now, settings):
        if isinstance(action, AttemptChanged) and action.new.job.state is not job.state:
            new = action.new
            if fact.status.result is None:  # no file tells when it ended
                new = replace(new, ended_at=None, job=replace(new.job, finished_at=None))
            return new.job, _shown_attempt(attempt, new)
    return job, attempt


def _shown_attempt(attempt: Attempt, new: ActiveAttempt) -> Attempt:
    """Returns an attempt as it is shown after a change. Its outcome is shown only with that of its job."""
    if new.state.is_open:
        return attempt
    attempt = replace(attempt, started_at=new.started_at, session=None)
    if new.job.state is not JobState.FINISHED:
        return attempt
    return replace(
        attempt, outcome=new.job.outcome, reason=new.reason, exit_code=new.exit_code, signal=new.signal,
        ended_at=new.ended_at,
    )  # fmt: skip


def runs_as_recorded(attempt: ActiveAttempt) -> bool:
    """Returns whether an attempt simply continues, so that `reconcile` changes no state.

    If so, a command need not import the rules, which would take longer than the rest of `status`.
    """
    status = attempt.status
    stops = status.stop is not None or attempt.stop_request is not None
    return (
        attempt.state is AttemptState.RUNNING
        and status.claim == "live"
        and status.result is None
        and not stops
    )


# Collects the data that all job views share: wait reasons, requests, open attempts and health issues.


def health_issues_of(store: Store) -> tuple[HealthIssue, ...]:
    """Returns the health issues of the files that the scheduler writes."""
    logs, started = store.db.meta(LOG_FOLDER_KEY), store.recorded_options()
    trust = started.trust_files
    found = find_issues(store.data_dir, LogFolder.from_json(logs) if logs is not None else None, trust=trust)
    config = (
        unusable_file_issue("llm_config", Path(started.llm_config), trust=trust)
        if started.llm_config
        else None
    )
    return (*_copy_issues(store), *found, *(() if config is None else (config,)), *_skipped_messages(store))


def _skipped_messages(store: Store) -> Iterator[HealthIssue]:
    """Yields an issue for each receiver of notifications that was dead for so long that it missed some."""
    for path in store.data_dir.folder.glob(f"{NOTIFY_PREFIX}*.json"):
        try:
            value = json.loads(path.read_bytes())
            receiver, event_id = str(value["receiver"]), value["skipped"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(event_id, int):
            text, remedy = (
                skipped_text(receiver, event_id),
                "repair the receiver, or delete this file to forget it",
            )
            yield HealthIssue("notifications", str(path), f"says that {text}", remedy, blocks_starts=False)


def skipped_text(receiver: str, event_id: int) -> str:
    """Formats that a receiver of notifications accepted none for so long that some were skipped."""
    return f"messages to {receiver} up to event {event_id} were skipped; it accepted none for 24 h"


def _copy_issues(store: Store) -> Iterator[HealthIssue]:
    of = original_of_copy(store)
    if of is not None:
        problem, remedy = f"is a copy of {of}, which still exists", "`start --fresh` forgets all its jobs"
        folder = str(store.data_dir.folder)
        yield HealthIssue("store", folder, problem, remedy, blocks_starts=True)


def stored_context(store: Store, job_ids: Iterable[int], now: Now) -> ViewContext:
    """Returns the part of the context for the views of these jobs that is recorded, without requests."""
    return ViewContext(
        now=now,
        wait_reasons=wait_reasons(store),
        parents=parents_of(store, job_ids),
        indices=store.gpu_indices(),
        victims=victims_by_job(store),
        reservation=queue_reservation_record(store),
        data_dir=store.data_dir,
    )


def context_of(
    store: Store, job_ids: Iterable[int], active: Iterable[ActiveAttempt], *, is_up: bool
) -> ViewContext:
    """Returns the context for the views of these jobs.

    active: the active attempts of these jobs and of their parents, as `Store.active_attempts` returns them.
    """
    context, started = stored_context(store, job_ids, Clock().now()), store.recorded_options()
    # The wait reasons of the last scheduler may be outdated, except for jobs that can never fit.
    reasons = {key: one for key, one in context.wait_reasons.items() if is_up or one.is_infeasible}
    observed = _observe_open(store, [attempt for attempt in active if attempt.state.is_open])
    context = replace(
        context,
        wait_reasons=reasons,
        default_wait=WaitKind.NOT_TRIED if is_up else WaitKind.NO_SCHEDULER,
        open_requests={job_id: verbs[-1] for job_id, verbs in requested_verbs(store).items()},
        is_recovery_requested=any(
            request.verb == "recover" and not request.target for request in open_requests(store)
        ),
        open_attempts=observed,
        stops=open_stops(observed.values(), context.now),
        oom_retries=started.oom_retries,
        fail_retries=started.fail_retries,
        is_scheduler_up=is_up,
    )
    return replace(context, parents=_with_unrecorded_ends(store, context))


def _with_unrecorded_ends(store: Store, context: ViewContext) -> Mapping[int, tuple[Parent, ...]]:
    """Returns the parents in the context, with the changes that the next round will record."""
    running = {one.id for parents in context.parents.values() for one in parents if one.state in ACTIVE}
    changed = {}
    for job_id, attempt in store.newest_attempts(running).items():
        job = store.job(job_id)
        view = None if job is None else job_view(job, attempt, context)
        if view is not None and not view.is_recorded:
            changed[job_id] = view.record
    if not changed:
        return context.parents

    def current(parent: Parent) -> Parent:
        record = changed.get(parent.id)
        return parent if record is None else parent._replace(state=record.state, outcome=record.outcome)

    return {job_id: tuple(map(current, parents)) for job_id, parents in context.parents.items()}


def _observe_open(store: Store, attempts: Collection[ActiveAttempt]) -> dict[int, ActiveAttempt]:
    if not attempts:
        return {}
    from gpu_scheduler.attempts.observe import observe_attempt

    return {attempt.id: observe_attempt(store, attempt) for attempt in attempts}


# Collects the facts about the jobs on which a job depends, and about those that depend on it.


#: Maximum number of jobs that are named.
_MAX_NAMED = 5


class DependencyFacts(Struct, frozen=True):
    """The facts about a job's dependencies, besides its parents.

    children: the first jobs that depend on it; child_count: the number of all these jobs. blocker: the
    nearest job for which it waits, directly or indirectly, and that needs the user; None if there is none.
    failed: the first jobs because of whose ends it is skipped. line: where the job's line is; None if it has
    none.
    """

    children: tuple[int, ...] = ()
    child_count: int = 0
    blocker: JobView | None = None
    failed: tuple[int, ...] = ()
    line: LineLocation | None = None


def dependency_facts(store: Store, job: Job, context: ViewContext) -> DependencyFacts:
    """Returns the facts about a job's dependencies."""
    below = children(store, job.id)
    return DependencyFacts(
        children=tuple(below[:_MAX_NAMED]),
        child_count=len(below),
        blocker=blocking_ancestor(store, job, context),
        failed=tuple(failed_ancestors(store, job.id, _MAX_NAMED)) if job.failed_parents else (),
        line=line_of(store, job.id),
    )


def blocking_ancestor(store: Store, job: Job, context: ViewContext) -> JobView | None:
    """Returns the nearest job for which a job waits and that needs the user; None if there is none."""
    if not job.unmet_parents or job.state not in WAITING:
        return None
    infeasible = [key for key, reason in context.wait_reasons.items() if reason.is_infeasible]
    found = ancestor_that_needs_user(store, job.id, infeasible)
    record = None if found is None else store.job(found)
    if record is None:
        return None
    newest = store.newest_attempts([record.id]).get(record.id)
    return job_view(record, newest, replace(context, parents=parents_of(store, [record.id])))


def new_reader() -> ProgressReader:
    """Returns a reader for `with_progress`. If the next call uses it again, it reads only what is new."""
    from gpu_scheduler.attempts.job_progress import ProgressReader

    return ProgressReader()


def with_progress(
    store: Store,
    jobs: Iterable[JobView],
    now: float,
    reader: ProgressReader | None = None,
    *,
    with_checkpoint: bool = True,
) -> tuple[JobView, ...]:
    """Returns the jobs, the running ones with their progress.

    now: in wall seconds. with_checkpoint: whether to look for checkpoints even if the logs show the progress.
    """
    shown = list(jobs)
    running = [job for job in shown if job.is_running]
    if not running:
        return tuple(shown)
    from gpu_scheduler.attempts.job_progress import adopted_source, progress_source

    reader = new_reader() if reader is None else reader
    found, read = {}, set[int]()
    for job in running:
        record = store.job(job.record.id)
        if record is None:
            continue
        if job.attempt is None or record.is_unwatched:
            source = adopted_source(record)
        else:
            source = progress_source(store, record.spec, job.attempt)
        if source is not None:
            found[record.id] = reader.read(source, now, with_checkpoint=with_checkpoint)
            read.add(source.key)
    reader.keep_only(read)
    return tuple(job._replace(progress=found.get(job.record.id)) for job in shown)
