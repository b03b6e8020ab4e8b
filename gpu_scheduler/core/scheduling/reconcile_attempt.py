"""Reconciles one open attempt with its folder, according to the rules in docs/design.md, Reconciling.

An open request to stop counts as a `stop` in every rule, unless its runner has withdrawn it. The actions
depend only on the attempt, the time, the settings and the GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, AdoptedProcess, Job, StopRequest
from gpu_scheduler.core.model.reasons import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.attempt_end import (
    GpuInventory,
    end_attempt,
    end_of_restored,
    end_with_result,
    interruption,
    launch_failure,
    outcome_of,
    watch_again,
    with_queued_job,
)
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import listed_processes, unattributed_memory
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve
from gpu_scheduler.core.scheduling.placement import DRIVER_MIB
from gpu_scheduler.core.scheduling.settings import Settings

# Decides when an attempt's processes get SIGTERM and, after the grace period, SIGKILL.


#: Seconds between two signals to processes that do not exit.
SIGNAL_INTERVAL_S = 1.0


def was_sent_sigkill(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether a sweep has sent SIGKILL and the processes have had time to exit.

    This must be checked because the grace period may exceed the wait for survivors, and because the scheduler
    may not have run in the meantime.
    """
    swept_at, signalled_at = attempt.swept_boot, attempt.signalled_boot
    killed = swept_at is not None and signalled_at is not None and signalled_at > swept_at
    return killed and may_signal(attempt, now)


def sweep(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    """Returns the next signal to the processes of an attempt, if one is due."""
    if attempt.swept_boot is None:
        return [act.Sweep(attempt.id, kill=False)]
    if now.boot - attempt.swept_boot < sweep_grace_s(attempt, settings) or not may_signal(attempt, now):
        return []
    return [act.Sweep(attempt.id, kill=True)]


def sweep_grace_s(attempt: ActiveAttempt, settings: Settings) -> float:
    """Returns the seconds between SIGTERM and SIGKILL for the processes of an attempt."""
    return settings.grace_s if attempt.stop_request is None else attempt.stop_request.grace_s


def may_signal(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether enough time has passed since the last signal to the attempt."""
    # A time in the future was recorded before the machine restarted.
    return attempt.signalled_boot is None or not 0 <= now.boot - attempt.signalled_boot < SIGNAL_INTERVAL_S


#: Seconds after the end of the grace period until the runner itself is killed (docs/design.md, Reconciling).
RUNNER_OVERTIME_S = 10.0
#: The same on an engine, whose runner looks for `stop` only every 2 s, over a file server.
ENGINE_OVERTIME_S = 45.0
_UNKNOWN_INVENTORY = GpuInventory()


def needs_process_scan(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether the round must scan for remaining processes of this attempt."""
    status = attempt.status
    if not attempt.state.is_open:
        return attempt.state is AttemptState.ENDED
    if status.claim == "dead" or status.result is not None:
        return status.claim == "dead"
    return _is_folder_removed(attempt) or has_unknown_runner(attempt) or _is_launch_overdue(attempt, now)


def _is_folder_removed(attempt: ActiveAttempt) -> bool:
    """Returns whether the attempt was claimed and its folder has been removed since."""
    return attempt.status.claim == "none" and not attempt.status.folder_exists and _was_claimed(attempt)


def has_unknown_runner(attempt: ActiveAttempt) -> bool:
    """Returns whether the attempt was claimed by a runner that neither the claim nor the store identifies."""
    status = attempt.status
    return status.claim == "invalid" or (
        status.claim == "none" and status.folder_exists and _was_claimed(attempt)
    )


def has_ended(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether an open attempt is over, so that the store will soon have its end."""
    status = attempt.status
    if status.result is None and status.claim != "void" and _is_watched_again(attempt, now):
        return False  # a request applies to the process, which the next attempt watches
    if status.result is not None or status.claim in ("dead", "void") or _is_folder_removed(attempt):
        return True
    if has_unknown_runner(attempt):
        return attempt.boot_id != now.boot_id or attempt.observed.survivors == ()
    # A launch of an earlier boot, unless it was stopped, whose claim may have to be voided again and again.
    return status.claim == "none" and attempt.boot_id != now.boot_id and _stop_cause(attempt) is None


def _is_watched_again(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether another attempt follows if the runner of this one has died without a result."""
    return attempt.watched_pid is not None and attempt.boot_id == now.boot_id and not attempt.is_line_gone


def _was_claimed(attempt: ActiveAttempt) -> bool:
    return attempt.status.command_began or attempt.state is not AttemptState.STARTING


def _is_launch_overdue(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether the launched runner has missed the deadline for its claim."""
    launched = attempt.status.folder_complete and attempt.launch_error is None
    return attempt.status.claim == "none" and launched and now.boot >= attempt.launch_deadline_boot


def reconcile(
    attempt: ActiveAttempt,
    now: Now,
    settings: Settings,
    inventory: GpuInventory = _UNKNOWN_INVENTORY,
    *,
    starts_blocked: bool = False,
) -> list[act.Action]:
    """Returns the actions of this round for an open attempt.

    inventory: the GPUs that its job may use; starts_blocked: whether a problem currently blocks all launches.
    """
    status = attempt.status
    if status.claim == "unknown":
        return []
    if status.claim == "unlocked" and status.result is None:
        # The runner is alive, but its progress cannot be observed in this folder. It must not count as dead.
        return []
    if status.result is not None:
        # If no process is left, one commit records the end and releases the GPUs.
        is_gone = attempt.observed.survivors == ()
        end = end_with_result(attempt, status.result, now, settings, inventory)
        return _end(attempt, end, now, is_gone=is_gone)
    if status.claim == "void":
        # A process that was never watched was not stopped either.
        cause = (_stop_cause(attempt) or status.void_cause) if attempt.watched_pid is None else None
        outcome = outcome_of(cause) if cause else Outcome.NOT_STARTED
        reason = None if cause else launch_failure(attempt)
        return _end(attempt, end_attempt(attempt, outcome, now, settings, reason), now)
    if status.claim == "accepted":
        # Only the engine knows when it begins, so there is no deadline.
        return _void_claim(attempt, now) if _stop_cause(attempt) else []
    if status.claim in ("live", "unclaimed"):
        return _reconcile_live(attempt, now, settings)
    if status.claim == "dead" or _is_folder_removed(attempt):
        return _reconcile_dead(attempt, now, settings)
    if has_unknown_runner(attempt):
        return _reconcile_unknown_runner(attempt, now, settings)
    if _stop_cause(attempt) and attempt.watched_pid is None:
        return _void_claim(attempt, now)
    if attempt.boot_id != now.boot_id:
        restarted = StateReason(ReasonKind.MACHINE_RESTARTED)
        return _end(attempt, end_attempt(attempt, Outcome.INTERRUPTED, now, settings, restarted), now)
    # If the folder is incomplete, the scheduler died before the launch, so no runner can be starting.
    if attempt.status.folder_complete and now.boot < attempt.launch_deadline_boot:
        return []
    if attempt.launch_error is None:
        # A process of the attempt still runs, so the runner is late or its claim was removed.
        if attempt.status.folder_complete and attempt.observed.survivors:
            return []
        if starts_blocked:
            # The problem that blocks starts also explains why no runner has claimed the attempt.
            tried = attempt.launch_count >= settings.max_launches
            return [act.AttemptChanged(attempt, replace(attempt, launch_count=0))] if tried else []
        # A launch with an incomplete folder, for example because the disk was full, does not count as failed.
        if not attempt.status.folder_complete or attempt.launch_count < settings.max_launches:
            return [act.Relaunch(attempt.id)]
    return _void_claim(attempt, now, gives_up=attempt.launch_error is None)


def _stop_cause(attempt: ActiveAttempt) -> str | None:
    """Returns why the attempt must stop; None if it need not stop.

    This is the cause of the open request or, without one, of the file `stop` in its folder.
    """
    if attempt.open_stop is not None:
        return attempt.open_stop.cause
    return attempt.status.stop.cause if attempt.status.stop is not None else None


def _end(attempt: ActiveAttempt, end: ActiveAttempt, now: Now, *, is_gone: bool = False) -> list[act.Action]:
    """Returns the end of an attempt. is_gone: whether its GPUs are released at once."""
    ended: list[act.Action] = [act.AttemptChanged(attempt, end)]
    return [*ended, act.AttemptChanged(end, end.released(now))] if is_gone else ended


def _changes(old: ActiveAttempt, new: ActiveAttempt) -> list[act.Action]:
    return [] if new is old else [act.AttemptChanged(old, new)]


def _reconcile_live(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    stop, wanted, this = attempt.status.stop, attempt.open_stop, attempt.id
    new = _with_runner(attempt)
    if attempt.is_stop_withdrawn:
        new = _without_stop(new)
    if stop is None and wanted is None:
        return _changes(attempt, new if attempt.state is AttemptState.RUNNING else new.running(now))
    is_new = attempt.is_stop_withdrawn or attempt.state is not AttemptState.STOPPING
    if attempt.state is not AttemptState.STOPPING:
        new = new.stopping(now)
    changes = _changes(attempt, new)
    if wanted is not None and (stop is None or (_is_stricter(wanted, stop) and may_signal(attempt, now))):
        return [*changes, act.RequestStop(this, wanted)]
    if stop is None or is_new or not may_signal(attempt, now):
        return changes
    since = now.boot - (attempt.stopping_boot if attempt.stopping_boot is not None else now.boot)
    if attempt.boot_id != now.boot_id:
        since = math.inf  # on an engine, while this machine was restarted, which takes longer than the grace
    overtime_s = ENGINE_OVERTIME_S if attempt.is_on_engine else RUNNER_OVERTIME_S
    if stop.on_timeout == "kill" and since >= stop.grace_s + overtime_s:
        return [*changes, act.KillRunner(this)]
    return [*changes, act.WakeRunner(this)]


def _without_stop(attempt: ActiveAttempt) -> ActiveAttempt:
    """Returns the attempt without an open request to stop it. No `stop` is written for it again."""
    return replace(attempt, job=replace(attempt.job, stop=None))


def _with_runner(attempt: ActiveAttempt) -> ActiveAttempt:
    """Returns the attempt with its observed runner."""
    runner, recorded = attempt.status.runner, attempt.runner
    # The boot ids are not compared, because the store already has the attempt's boot id.
    if runner is None or (recorded is not None and runner[:2] == recorded[:2]):
        return attempt
    return replace(attempt, runner_pid=runner.pid, runner_start_ticks=runner.start_ticks)


def _reconcile_unknown_runner(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    """Reconciles an attempt with an unknown runner, which counts as running while it has processes.

    The processes are ended only if a cancel or `stop` requests it.
    """
    if attempt.boot_id != now.boot_id or attempt.observed.survivors == ():
        return _reconcile_dead(attempt, now, settings)
    forced = attempt.open_stop or attempt.status.stop
    if forced is not None and forced.on_timeout == "withdraw":
        # Nobody could withdraw it, so it must not begin.
        return [] if attempt.stop_request is None else _changes(attempt, _without_stop(attempt))
    if attempt.observed.survivors is None or forced is None:
        return []
    this, stop, wanted = attempt.id, attempt.status.stop, attempt.open_stop
    actions: list[act.Action] = []
    if attempt.state is not AttemptState.STOPPING:
        actions.append(act.AttemptChanged(attempt, attempt.stopping(now)))
    if wanted is not None and (stop is None or _is_stricter(wanted, stop)):
        # If one of the processes is a runner, it reads `stop` when it gets the SIGTERM that follows.
        return [*actions, act.RequestStop(this, wanted)] if may_signal(attempt, now) else actions
    return [*actions, *sweep(attempt, now, settings)]


def _void_claim(attempt: ActiveAttempt, now: Now, *, gives_up: bool = False) -> list[act.Action]:
    # Retried only at intervals, so that a claim that cannot be voided does not block the rest of the round.
    return [act.VoidClaim(attempt.id, gives_up)] if may_signal(attempt, now) else []


def _is_stricter(wanted: StopRequest, stop: StopRequest) -> bool:
    """Returns whether the open request must replace the one in the file `stop`."""
    return wanted.may_replace(stop) and (
        (wanted.cause, wanted.stop_id) != (stop.cause, stop.stop_id) or wanted.grace_s < stop.grace_s
    )


def _reconcile_dead(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    if attempt.observed.survivors is None:
        return []
    if attempt.observed.survivors:
        is_known = attempt.state is AttemptState.ORPHANED
        actions = [] if is_known else _changes(attempt, attempt.orphaned(now))
        died_at = attempt.runner_died_boot if is_known else None
        since = 0.0 if died_at is None else now.boot - died_at
        if since < settings.survivor_wait_s or not was_sent_sigkill(attempt, now):
            return actions + sweep(attempt, now, settings)
    if _is_watched_again(attempt, now):
        return _end(attempt, watch_again(attempt, now), now, is_gone=True)
    cause = _stop_cause(attempt)
    outcome = outcome_of(cause) if cause else Outcome.INTERRUPTED
    reason = replace(interruption(attempt, now), survivors=attempt.observed.survivors)
    survivors = attempt.observed.survivors
    return _end(attempt, end_attempt(attempt, outcome, now, settings, reason, survivors), now)


# Releases the GPUs of an ended attempt in two steps.
#
# First, its processes must end. Then, its memory must become free.


def release_allocation(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    """Releases the allocation of an ended attempt. Any remaining processes are ended first."""
    if attempt.observed.survivors is None:
        return []
    if not attempt.observed.survivors:
        return [act.AttemptChanged(attempt, attempt.released(now))]
    return sweep(attempt, now, settings)


def check_memory_release(
    attempt: ActiveAttempt,
    gpu_memory: Sequence[tuple[float | None, int | None]],
    now: Now,
    settings: Settings,
) -> list[act.Action]:
    """Checks whether the memory of a released attempt's GPUs is free again.

    gpu_memory: for each of its GPUs, in the order of `attempt.gpus`, the time of the sample and the
    unattributed memory in MiB; None if unknown.
    """
    if attempt.released_boot is None:
        return []
    over = attempt.boot_id != now.boot_id or now.boot >= attempt.released_boot + settings.memory_release_s
    released_at = attempt.released_boot
    back = all(
        sampled_at is not None
        and sampled_at >= released_at
        and (mib is None or mib <= attempt.baseline_mib.get(uuid, 0) + DRIVER_MIB)
        for uuid, (sampled_at, mib) in zip(attempt.gpus, gpu_memory, strict=True)
    )
    return [act.AttemptChanged(attempt, attempt.closed())] if over or back else []


# Decides whether an attempt that is ending frees its GPUs soon, so that a waiting job may count on them.


#: Seconds after its grace period from which an attempt that has not ended may never end.
OVERTIME_S = RUNNER_OVERTIME_S + 5.0


def leaving_attempts(facts: Facts) -> frozenset[int]:
    """Returns the ids of the attempts that free their GPUs soon.

    These are the ones that end within the longest of the scheduler's own grace periods. One that the user
    gave more time is not waited for, and one that outlives SIGKILL may remain for ever.
    """
    soon_s = max(facts.settings.grace_s, facts.settings.preempt_grace_s)

    def is_leaving(attempt: ActiveAttempt) -> bool:
        left_s = departure_s(attempt, facts.now, facts.settings)
        return attempt.state is AttemptState.RELEASED or (left_s is not None and left_s <= soon_s)

    return frozenset(one.id for one in facts.attempts if is_leaving(one))


def departure_s(attempt: ActiveAttempt, now: Now, settings: Settings) -> float | None:
    """Returns the seconds in which an attempt that is ending frees its GPUs; None if it is not ending.

    Infinite if it may remain for ever.
    """
    stop = attempt.open_stop or attempt.status.stop
    if attempt.state is AttemptState.RELEASED:
        since, grace_s = attempt.released_boot, settings.memory_release_s
        return grace_s if since is None else max(0.0, grace_s - (now.boot - since))
    if attempt.state.is_open and attempt.status.claim == "unlocked":
        return None  # the loop leaves it alone, even if it must stop
    if attempt.state in (AttemptState.ENDED, AttemptState.ORPHANED):
        since, grace_s = attempt.swept_boot, sweep_grace_s(attempt, settings)
    elif stop is not None and stop.on_timeout == "kill":
        since, grace_s = attempt.stopping_boot, stop.grace_s
    else:
        return None
    left_s = grace_s if since is None else grace_s - (now.boot - since)
    return max(0.0, left_s) if left_s > -OVERTIME_S else math.inf


# Decides what happens to attempts in a store that was restored from their folders.
#
# A restored attempt ends, or its job is held, or the attempt stays open. Nothing is launched again, because a
# folder does not record everything that a retry depends on, such as the number of retries used.


def restore(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    """Returns the actions for the newest attempt of a job in a restored store.

    If none of them ends the attempt, it stays open, because it is running or has remaining processes. It is
    then reconciled like every open attempt.
    """
    status = attempt.status
    if status.result is None and status.claim == "void":
        held = NextStep(NextKind.HELD, job_id=attempt.job_id)
        lost = StateReason(ReasonKind.STORE_LOST, next_steps=(held,))
        end = end_of_restored(attempt, Outcome.NOT_STARTED, JobState.HELD, lost, now)
        return _end_and_close(attempt, end, now)
    if status.result is None and attempt.observed.survivors and status.claim != "live":
        return []
    # An attempt whose line counts as gone is never retried.
    orphaned = replace(attempt.seen(survivors=attempt.observed.survivors or ()), is_line_gone=True)
    changes = [one for one in reconcile(orphaned, now, settings) if isinstance(one, act.AttemptChanged)]
    ended = next((one.new for one in changes if one.is_end), None)
    if ended is None:
        return [one for one in changes if one.new.state is not one.old.state]
    return _end_and_close(attempt, ended, now)


def supersede(attempt: ActiveAttempt, now: Now, settings: Settings) -> list[act.Action]:
    """Returns the actions for an attempt that was followed by another one: it ends, but its job does not."""
    restored = (one for one in restore(attempt, now, settings) if isinstance(one, act.AttemptChanged))
    ended = next((one.new for one in restored if one.is_end), None)
    if ended is None:
        superseded = StateReason(ReasonKind.SUPERSEDED)
        ended = end_of_restored(attempt, Outcome.INTERRUPTED, JobState.QUEUED, superseded, now)
    return _end_and_close(attempt, with_queued_job(ended, now), now)


def _end_and_close(attempt: ActiveAttempt, end: ActiveAttempt, now: Now) -> list[act.Action]:
    """Returns the end of an attempt and, if it has no processes, the release of its GPUs and their memory."""
    if attempt.observed.survivors:
        return _end(attempt, end, now)
    released = end.released(now)
    return [*_end(attempt, end, now, is_gone=True), act.AttemptChanged(released, released.closed())]


# Decides what becomes of adopted processes that no runner watches. They already run, so they never queue.


def watch_adopted(facts: Facts) -> list[act.Action]:
    """Starts a watcher for each adopted process, on its own GPUs, whatever else they hold.

    A process of an earlier boot is gone. Its job counts as interrupted, unless it had to stop.
    """
    actions: list[act.Action] = []
    for job in facts.adopted_jobs:
        if _process_of(job).boot_id != facts.now.boot_id:
            actions.append(_end_of_unwatched(job, facts.now))
        elif facts.storage_issue is None and _is_due(job, facts.now):
            actions.append(_watch(job, facts))
    return actions


def _process_of(job: Job) -> AdoptedProcess:
    assert job.adopted is not None
    return job.adopted


def _is_due(job: Job, now: Now) -> bool:
    """Returns whether a watcher may be started now; False for a moment after the last one has died."""
    return job.boot_id != now.boot_id or (job.not_before_boot or 0.0) <= now.boot


def _end_of_unwatched(job: Job, now: Now) -> act.JobChanged:
    """Returns the end of a job whose process ended with an earlier boot, while no runner watched it."""
    reason = StateReason(ReasonKind.MACHINE_RESTARTED)
    outcome = Outcome.INTERRUPTED if job.stop is None else outcome_of(job.stop.cause)
    is_cancelled = outcome is Outcome.CANCELLED
    new = job.finished(outcome, reason, now) if is_cancelled else job.held(outcome.value, reason)
    return act.JobChanged(job, new)


def unwatched_attempts(facts: Facts) -> tuple[ActiveAttempt, ...]:
    """Returns the attempts that hold the GPUs of adopted processes as long as no runner watches them.

    They exist only for the accounting. Their ids are negative.
    """
    return tuple(
        ActiveAttempt(
            -job.id,
            job.id,
            token="",
            boot_id=facts.now.boot_id,
            state=AttemptState.RUNNING,
            allocations=_watch(job, facts).allocations,
            job=job,
        )
        for job in facts.adopted_jobs
    )


def _watch(job: Job, facts: Facts) -> act.Start:
    need, process = resolve(ResourceSpec.from_key(job.spec_key), facts.config), _process_of(job)
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    gpus = [known[uuid] for uuid in process.gpus if uuid in known]
    return act.Start(
        job.id,
        tuple(gpu.uuid for gpu in gpus),
        need.share,
        tuple((gpu.uuid, _baseline(gpu, need.vram, facts)) for gpu in gpus),
        need.vram,
        need.whole or facts.settings.exclusive,
        assumed=need.assumed,
        process=process,
    )


def _baseline(gpu: Gpu, vram: int | None, facts: Facts) -> int:
    """Returns the unattributed memory of a GPU in MiB, without that of the process itself."""
    mib = unattributed_memory(gpu, facts.attempts, facts.settings) or 0
    if listed_processes(gpu) is not None:
        return mib
    # The driver does not say which part is that of the process.
    return 0 if vram is None else max(0, mib - vram)
