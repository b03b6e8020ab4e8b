"""A vocabulary of single changes for tests: small values that stand for the changes of rows in a round.

`told` reads the changes of a round as such values, so that a test can compare them with what it expects. A
`StepWriter` records them, so that a test can bring a store into a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu, Suspicion
from gpu_scheduler.core.model.job import ActiveAttempt, Checkpoint, Job, StopRequest
from gpu_scheduler.core.model.reasons import StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.request import PauseCause
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import attempt_end, gpu_use, reconcile_attempt, requests
from gpu_scheduler.core.scheduling import plan as rounds
from gpu_scheduler.core.scheduling.actions import (
    Action,
    AnswerRequest,
    AttemptAction,
    AttemptChanged,
    ClearFinished,
    DropReservation,
    EndScheduler,
    GpuChanged,
    JobChanged,
    KillRunner,
    RecordGpuTime,
    Relaunch,
    RequestStop,
    Reserve,
    SetDependencies,
    SetQueuePositions,
    SetQueueReservation,
    SettleDependencies,
    SetWaitReason,
    Start,
    Sweep,
    VoidClaim,
    WakeRunner,
)
from gpu_scheduler.store.records import ATTEMPTS, JOBS, Table
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

__all__ = [
    "Action", "AnswerRequest", "AttemptAction", "AttemptChanged", "ClearFinished", "ClearJob",
    "ClearStop", "DropReservation", "EndScheduler", "FinishAttempt", "FinishJob", "GpuChanged",
    "HoldJob", "JobChanged", "KillRunner", "RecordForeignLoad", "RecordForeignPeaks", "RecordGpuTime",
    "RecordMemoryReleased", "RecordMisplacedProcess", "RecordOveruse", "RecordRunner",
    "RecordRunnerDeath", "RecordStop", "RecordUsage", "RecordWindowClosed", "Relaunch",
    "ReleaseAllocation", "RequestStop", "RequeueJob", "Reserve", "ResetLaunchCount", "SetAttribute",
    "SetConfirmed", "SetDependencies", "SetPaused", "SetQueuePositions", "SetQueueReservation",
    "SetSuspicion", "SetWaitReason", "SettleDependencies", "Start", "StepWriter", "Sweep", "VoidClaim",
    "WakeRunner", "answer_requests", "in_steps", "misplaced_processes", "plan", "reconcile",
    "record_measurements", "recover_interrupted", "restore", "supersede", "told",
]  # fmt: skip


class OfJob(Action, frozen=True):
    """A change of the row of a job."""

    job_id: int

    def change(self, job: Job, now: Now) -> JobChanged:
        """Returns the change of this job that the step stands for."""
        raise NotImplementedError


class FinishJob(OfJob, frozen=True):
    outcome: Outcome
    reason: StateReason | None

    def change(self, job: Job, now: Now) -> JobChanged:
        return JobChanged(job, job.finished(self.outcome, self.reason, now))


class HoldJob(OfJob, frozen=True):
    by: str
    reason: StateReason

    def change(self, job: Job, now: Now) -> JobChanged:
        return JobChanged(job, job.held(self.by, self.reason))


class RequeueJob(OfJob, frozen=True):
    reason: StateReason
    recoveries: int = 0
    checkpoint: Checkpoint | None = None
    keeps_checkpoint: bool = False
    min_vram_mib: int | None = None

    def change(self, job: Job, now: Now) -> JobChanged:
        new = job.queued_again(
            now, recoveries=self.recoveries, checkpoint=self.checkpoint, keeps=self.keeps_checkpoint
        )
        if self.min_vram_mib is not None:
            new = replace(new, min_vram_mib=self.min_vram_mib)
        return JobChanged(job, new, self.reason)


class ClearJob(OfJob, frozen=True):
    def change(self, job: Job, now: Now) -> JobChanged:
        return JobChanged(job, replace(job, cleared_at=now.wall))


class RecordStop(OfJob, frozen=True):
    stop: StopRequest

    def change(self, job: Job, now: Now) -> JobChanged:
        return JobChanged(job, replace(job, stop=self.stop))


class SetAttribute(OfJob, frozen=True):
    name: str
    value: Any

    def change(self, job: Job, now: Now) -> JobChanged:
        return JobChanged(job, job.with_attribute(self.name, self.value))


class SetConfirmed(OfJob, frozen=True):
    confirmed: bool

    def change(self, job: Job, now: Now) -> JobChanged:
        wait = None if self.confirmed else WaitReason(WaitKind.NOT_CONFIRMED)
        return JobChanged(job, replace(job, source_missing=not self.confirmed, line_wait=wait))


class OfAttempt(Action, frozen=True):
    """A change of the rows of an attempt."""

    attempt_id: int

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        """Returns the attempt after the step."""
        raise NotImplementedError


class ResetLaunchCount(OfAttempt, frozen=True):
    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return replace(attempt, launch_count=0)


class RecordRunner(OfAttempt, frozen=True):
    pid: int
    start_ticks: int

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return replace(attempt, runner_pid=self.pid, runner_start_ticks=self.start_ticks)


class RecordRunnerDeath(OfAttempt, frozen=True):
    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return attempt.orphaned(now)


class RecordMisplacedProcess(OfAttempt, frozen=True):
    uuid: str
    pid: int

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return replace(attempt, misplaced=(*attempt.misplaced, (self.uuid, self.pid)))


class RecordWindowClosed(OfAttempt, frozen=True):
    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return replace(attempt, window_closed=True)


class RecordOveruse(OfAttempt, frozen=True):
    """Overuse. The observed use is the peak in the allocation, the declared memory is its budget."""

    uuid: str
    used_mib: int
    declared_mib: int
    share: int | None = None

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        allocations = [
            replace(one, overuse_logged=True, peak_mib=max(one.peak_mib or 0, self.used_mib))
            if one.gpu == self.uuid
            else one
            for one in attempt.allocations
        ]
        return replace(attempt, allocations=tuple(allocations))


class ReleaseAllocation(OfAttempt, frozen=True):
    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return attempt.released(now)


class RecordMemoryReleased(OfAttempt, frozen=True):
    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return attempt.closed()


class OfBoth(Action, frozen=True):
    """A change of the rows of an attempt and its job."""

    job_id: int
    attempt_id: int

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        """Returns the attempt after the step."""
        raise NotImplementedError


class Transition(OfBoth, frozen=True):
    state: JobState

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return attempt.running(now) if self.state is JobState.RUNNING else attempt.stopping(now)


class ClearStop(Action, frozen=True):
    attempt_id: int
    job_id: int
    stop_id: str

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        return replace(attempt, job=replace(attempt.job, stop=None))


class RecordUsage(OfBoth, frozen=True):
    sampled_at: float
    usage: tuple[tuple[str, int | None, float | None], ...]

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        used = {gpu: (mib, load) for gpu, mib, load in self.usage}
        allocations = []
        for one in attempt.allocations:
            mib, load = used.get(one.gpu, (None, None))
            peaks = [peak for peak in (one.peak_mib, mib) if peak is not None]
            allocations.append(
                replace(
                    one,
                    peak_mib=max(peaks, default=None),
                    load_sum=one.load_sum + (load or 0.0),
                    load_samples=one.load_samples + (load is not None),
                )
            )
        return replace(attempt, allocations=tuple(allocations), measured_boot=self.sampled_at)


class FinishAttempt(OfBoth, frozen=True):
    outcome: Outcome
    state: JobState
    job_outcome: Outcome | None
    reason: StateReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    survivors: tuple[int, ...] = ()
    launch_failures: int = 0
    not_before: float | None = None
    oom_retries_used: int = 0
    fail_retries_used: int = 0
    recoveries: int = 0
    checkpoint: Checkpoint | None = None
    resume_from: Checkpoint | None = None
    min_vram_mib: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    shortage: int | None = None
    is_still_adopted: bool = False
    keeps_stop: bool = False

    def change(self, attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
        ended_at = now.wall if self.ended_at is None else self.ended_at
        job, is_launch = attempt.job, self.outcome is Outcome.NOT_STARTED
        is_queued = self.state is JobState.QUEUED and job.state is not JobState.QUEUED and not is_launch
        job = replace(
            job, state=self.state, outcome=self.job_outcome, reason=self.reason, exit_code=self.exit_code,
            signal=self.signal, held_by=self.outcome.value if self.state is JobState.HELD else None,
            recoveries=self.recoveries, launch_failures=self.launch_failures, boot_id=now.boot_id,
            not_before_boot=self.not_before, oom_retries_used=self.oom_retries_used,
            fail_retries_used=self.fail_retries_used, checkpoint=self.checkpoint,
            finished_at=ended_at if self.state is JobState.FINISHED else None,
            resume_from=job.resume_from if is_launch else self.resume_from,
            queued_at=now.wall if is_queued else job.queued_at,
            min_vram_mib=job.min_vram_mib if self.min_vram_mib is None else self.min_vram_mib,
            adopted=job.adopted if self.is_still_adopted else None,
            stop=job.stop if self.keeps_stop else None,
        )  # fmt: skip
        return replace(
            attempt, state=AttemptState.ENDED, outcome=self.outcome, exit_code=self.exit_code,
            signal=self.signal, reason=self.reason, survivors=self.survivors, ended_at=ended_at, job=job,
            started_at=attempt.started_at if self.started_at is None else self.started_at,
        )  # fmt: skip


class OfGpu(Action, frozen=True):
    """A change of the row of a GPU."""

    uuid: str

    def change(self, gpu: Gpu, now: Now) -> GpuChanged | None:
        """Returns the change of this GPU that the step stands for."""
        raise NotImplementedError


class SetPaused(OfGpu, frozen=True):
    paused: bool
    cause: PauseCause | None = None

    def change(self, gpu: Gpu, now: Now) -> GpuChanged | None:
        if gpu.paused is self.paused and (self.paused or gpu.suspicion is None):
            return None
        resumed = replace(gpu, paused=False, usable_since=now.wall, suspicion=None)
        return GpuChanged(gpu, replace(gpu, paused=True) if self.paused else resumed, self.cause)


class SetSuspicion(OfGpu, frozen=True):
    suspicion: Suspicion | None

    def change(self, gpu: Gpu, now: Now) -> GpuChanged | None:
        return GpuChanged(gpu, replace(gpu, suspicion=self.suspicion))


class RecordForeignLoad(OfGpu, frozen=True):
    loads: tuple[float | None, ...]
    sampled_at: float | None

    def change(self, gpu: Gpu, now: Now) -> GpuChanged | None:
        return GpuChanged(gpu, replace(gpu, foreign_loads=self.loads, foreign_load_boot=self.sampled_at))


class RecordForeignPeaks(OfGpu, frozen=True):
    peaks: tuple[tuple[int, float, int], ...]

    def change(self, gpu: Gpu, now: Now) -> GpuChanged | None:
        return GpuChanged(gpu, replace(gpu, foreign_peaks={(pid, at): mib for pid, at, mib in self.peaks}))


def changes(store: Store, step: Action, now: Now) -> list[Action]:
    """Returns the changes of rows of this store that a step stands for."""
    if isinstance(step, OfJob):
        job = store.job(step.job_id)
        assert job is not None
        return [step.change(job, now)]
    if isinstance(step, (OfAttempt, OfBoth, ClearStop)):
        attempt = next(one for one in store.active_attempts() if one.id == step.attempt_id)
        return [AttemptChanged(attempt, step.change(attempt, now))]
    if isinstance(step, OfGpu):
        gpu = next(one for one in store.gpus() if one.uuid == step.uuid)
        change = step.change(gpu, now)
        return [] if change is None else [change]
    return [step]


class StepWriter(StoreWriter):
    """A writer that also records steps. Each is based on the rows that the steps before have left."""

    def record(self, actions: Iterable[Action], now: Now) -> dict[int, int]:
        """Records actions and steps in one transaction. Returns the ids of the attempts that it opened."""
        opened: dict[int, int] = {}
        with self._store.db.transaction():
            for step in actions:
                for change in changes(self._store, step, now):
                    self._check(change)
                    opened |= super().record([change], now)
        return opened

    def _check(self, change: Action) -> None:
        """Checks that the columns that a change writes still have the values on which it is based."""
        if isinstance(change, JobChanged):
            _check_basis(JOBS, change.old, change.new, self._store.job(change.new.id))
        elif isinstance(change, AttemptChanged):
            _check_basis(ATTEMPTS, change.old, change.new, self._store.attempt(change.new.id))
            _check_basis(JOBS, change.old.job, change.new.job, self._store.job(change.new.job_id))


def _check_basis(table: Table[Any], old: Any, new: Any, there: Any) -> None:
    written, differs = table.changes(old, new), table.changes(old, there)
    assert not written.keys() & differs.keys(), f"{old} was changed meanwhile: {differs}"


def told(actions: Iterable[Action]) -> list[Action]:
    """Returns the actions of a round with steps in place of the changes of rows."""
    found: list[Action] = []
    for action in actions:
        if isinstance(action, JobChanged):
            found += _of_job(action)
        elif isinstance(action, AttemptChanged):
            found += _of_attempt(action)
        elif isinstance(action, GpuChanged):
            found += _of_gpu(action)
        else:
            found.append(action)
    return found


_P = ParamSpec("_P")


def in_steps(decide: Callable[_P, Sequence[Action]]) -> Callable[_P, list[Action]]:
    """Returns the decision as steps."""

    def decided(*args: _P.args, **kwargs: _P.kwargs) -> list[Action]:
        return told(decide(*args, **kwargs))

    return decided


# The decisions of the scheduler, as steps.
answer_requests = in_steps(requests.answer_requests)
misplaced_processes = in_steps(rounds.misplaced_processes)
plan = in_steps(rounds.plan)
reconcile = in_steps(reconcile_attempt.reconcile)
record_measurements = in_steps(gpu_use.record_measurements)
recover_interrupted = in_steps(attempt_end.recover_interrupted)
restore = in_steps(reconcile_attempt.restore)
supersede = in_steps(reconcile_attempt.supersede)


def _of_job(action: JobChanged) -> Iterator[Action]:
    old, new = action.old, action.new
    if new.spec_json != old.spec_json:
        before, after = old.spec.attributes, new.spec.attributes
        if old.spec.command != new.spec.command:
            yield SetAttribute(new.id, "command", new.spec.command)
        for name, value in after.items():
            if value != before[name]:
                yield SetAttribute(new.id, name, value)
    if new.state is not old.state or new.outcome is not old.outcome:
        yield _of_state(action)
    elif new.stop is not old.stop and new.stop is not None:
        yield RecordStop(new.id, new.stop)
    elif new.cleared_at != old.cleared_at:
        yield ClearJob(new.id)
    elif new.source_missing is not old.source_missing:
        yield SetConfirmed(new.id, not new.source_missing)


def _of_state(action: JobChanged) -> Action:
    old, new = action.old, action.new
    if new.state is JobState.FINISHED:
        assert new.outcome is not None
        return FinishJob(new.id, new.outcome, new.reason)
    if new.state is JobState.HELD:
        assert new.held_by is not None
        assert new.reason is not None
        return HoldJob(new.id, new.held_by, new.reason)
    assert action.because is not None
    keeps = new.resume_from is not None and new.resume_from == old.resume_from
    needed = None if new.min_vram_mib == old.min_vram_mib else new.min_vram_mib
    checkpoint = None if keeps else new.resume_from
    return RequeueJob(new.id, action.because, new.recoveries, checkpoint, keeps, needed)


def _of_attempt(action: AttemptChanged) -> Iterator[Action]:
    old, new = action.old, action.new
    yield from _measured(old, new)
    if not action.is_end and old.job.stop is not None and new.job.stop is None:
        yield ClearStop(new.id, new.job_id, old.job.stop.stop_id)
    if new.runner_pid is not None and (new.runner_pid, new.runner_start_ticks) != (
        old.runner_pid, old.runner_start_ticks,
    ):  # fmt: skip
        yield RecordRunner(new.id, new.runner_pid, new.runner_start_ticks or 0)
    if new.launch_count != old.launch_count:
        yield ResetLaunchCount(new.id)
    if new.window_closed and not old.window_closed:
        yield RecordWindowClosed(new.id)
    for gpu, pid in new.misplaced[len(old.misplaced) :]:
        yield RecordMisplacedProcess(new.id, gpu, pid)
    if new.state is not old.state:
        yield _of_new_state(old, new)


def _of_new_state(old: ActiveAttempt, new: ActiveAttempt) -> Action:
    if new.state in (AttemptState.RUNNING, AttemptState.STOPPING):
        return Transition(new.job_id, new.id, new.job.state)
    if new.state is AttemptState.ENDED:
        return _end(old, new)
    kinds: Mapping[AttemptState, type[OfAttempt]] = {
        AttemptState.ORPHANED: RecordRunnerDeath,
        AttemptState.RELEASED: ReleaseAllocation,
        AttemptState.CLOSED: RecordMemoryReleased,
    }
    return kinds[new.state](new.id)


def _end(old: ActiveAttempt, new: ActiveAttempt) -> FinishAttempt:
    job, result = new.job, old.status.result
    assert new.outcome is not None
    return FinishAttempt(
        new.job_id, new.id, new.outcome, job.state, job.outcome, new.reason, new.exit_code, new.signal,
        new.survivors, job.launch_failures, job.not_before_boot, job.oom_retries_used, job.fail_retries_used,
        job.recoveries, job.checkpoint,
        resume_from=None if new.outcome is Outcome.NOT_STARTED else job.resume_from,
        min_vram_mib=None if job.min_vram_mib == old.job.min_vram_mib else job.min_vram_mib,
        started_at=None if result is None else result.started_at,
        ended_at=None if result is None else result.ended_at,
        shortage=None if result is None else result.shortage,
        is_still_adopted=job.adopted is not None, keeps_stop=job.stop is not None,
    )  # fmt: skip


def _measured(old: ActiveAttempt, new: ActiveAttempt) -> Iterator[Action]:
    """Yields the steps for a new sample. Only what the sums show is known of it."""
    if new.measured_boot != old.measured_boot:
        assert new.measured_boot is not None
        usage = tuple(
            (
                after.gpu,
                after.peak_mib if after.peak_mib != before.peak_mib else None,
                after.load_sum - before.load_sum if after.load_samples != before.load_samples else None,
            )
            for before, after in zip(old.allocations, new.allocations, strict=True)
        )
        yield RecordUsage(new.job_id, new.id, new.measured_boot, usage)
    for before, after in zip(old.allocations, new.allocations, strict=True):
        if after.overuse_logged and not before.overuse_logged:
            share = new.share if new.vram is None else None
            yield RecordOveruse(new.id, after.gpu, after.peak_mib or 0, after.budget_mib or 0, share)


def _of_gpu(action: GpuChanged) -> Iterator[Action]:
    old, new = action.old, action.new
    if new.paused is not old.paused or new.usable_since != old.usable_since:
        yield SetPaused(new.uuid, new.paused, action.cause)
    elif new.suspicion != old.suspicion:
        yield SetSuspicion(new.uuid, new.suspicion)
    if new.foreign_peaks != old.foreign_peaks:
        peaks = tuple((pid, at, mib) for (pid, at), mib in sorted(new.foreign_peaks.items()))
        yield RecordForeignPeaks(new.uuid, peaks)
    if new.foreign_loads != old.foreign_loads:
        yield RecordForeignLoad(new.uuid, new.foreign_loads, new.foreign_load_boot)
