"""A vocabulary of single changes for tests: small values that stand for the changes of rows in a round.

`told` reads the changes of a round as such values, so that a test can compare them with what it expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

from gpu_scheduler.core.model.gpu import Suspicion
from gpu_scheduler.core.model.job import ActiveAttempt, Checkpoint, StopRequest
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.model.request import PauseCause
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
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

__all__ = [
    "Action", "AnswerRequest", "AttemptAction", "AttemptChanged", "ClearFinished", "ClearJob",
    "ClearStop", "DropReservation", "EndScheduler", "FinishAttempt", "FinishJob", "GpuChanged",
    "HoldJob", "JobChanged", "KillRunner", "RecordForeignLoad", "RecordForeignPeaks", "RecordGpuTime",
    "RecordMemoryReleased", "RecordMisplacedProcess", "RecordOveruse", "RecordRunner",
    "RecordRunnerDeath", "RecordStop", "RecordUsage", "RecordWindowClosed", "Relaunch",
    "ReleaseAllocation", "RequestStop", "RequeueJob", "Reserve", "ResetLaunchCount", "SetAttribute",
    "SetConfirmed", "SetDependencies", "SetPaused", "SetQueuePositions", "SetQueueReservation",
    "SetSuspicion", "SetWaitReason", "SettleDependencies", "Start", "Sweep", "VoidClaim",
    "WakeRunner", "answer_requests", "in_steps", "misplaced_processes", "plan", "reconcile",
    "record_measurements", "recover_interrupted", "restore", "supersede", "told",
]  # fmt: skip


class OfJob(Action, frozen=True):
    """A change of the row of a job."""

    job_id: int


class FinishJob(OfJob, frozen=True):
    outcome: Outcome
    reason: StateReason | None


class HoldJob(OfJob, frozen=True):
    by: str
    reason: StateReason


class RequeueJob(OfJob, frozen=True):
    reason: StateReason
    recoveries: int = 0
    checkpoint: Checkpoint | None = None
    keeps_checkpoint: bool = False
    min_vram_mib: int | None = None


class ClearJob(OfJob, frozen=True):
    pass


class RecordStop(OfJob, frozen=True):
    stop: StopRequest


class SetAttribute(OfJob, frozen=True):
    name: str
    value: Any


class SetConfirmed(OfJob, frozen=True):
    confirmed: bool


class OfAttempt(Action, frozen=True):
    """A change of the rows of an attempt."""

    attempt_id: int


class ResetLaunchCount(OfAttempt, frozen=True):
    pass


class RecordRunner(OfAttempt, frozen=True):
    pid: int
    start_ticks: int


class RecordRunnerDeath(OfAttempt, frozen=True):
    pass


class RecordMisplacedProcess(OfAttempt, frozen=True):
    uuid: str
    pid: int


class RecordWindowClosed(OfAttempt, frozen=True):
    pass


class RecordOveruse(OfAttempt, frozen=True):
    """Overuse. The observed use is the peak in the allocation, the declared memory is its budget."""

    uuid: str
    used_mib: int
    declared_mib: int
    share: int | None = None


class ReleaseAllocation(OfAttempt, frozen=True):
    pass


class RecordMemoryReleased(OfAttempt, frozen=True):
    pass


class OfBoth(Action, frozen=True):
    """A change of the rows of an attempt and its job."""

    job_id: int
    attempt_id: int


class Transition(OfBoth, frozen=True):
    state: JobState


class ClearStop(Action, frozen=True):
    attempt_id: int
    job_id: int
    stop_id: str


class RecordUsage(OfBoth, frozen=True):
    sampled_at: float
    usage: tuple[tuple[str, int | None, float | None], ...]


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


class OfGpu(Action, frozen=True):
    """A change of the row of a GPU."""

    uuid: str


class SetPaused(OfGpu, frozen=True):
    paused: bool
    cause: PauseCause | None = None


class SetSuspicion(OfGpu, frozen=True):
    suspicion: Suspicion | None


class RecordForeignLoad(OfGpu, frozen=True):
    loads: tuple[float | None, ...]
    sampled_at: float | None


class RecordForeignPeaks(OfGpu, frozen=True):
    peaks: tuple[tuple[int, float, int], ...]


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
