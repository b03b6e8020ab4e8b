"""Plans the actions of one round from its facts. Only `plan` combines the separate decisions."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling import requests
from gpu_scheduler.core.scheduling.attempt_end import GpuInventory, recover_interrupted
from gpu_scheduler.core.scheduling.engine_queue import hand_over
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_faults import find_suspects
from gpu_scheduler.core.scheduling.gpu_use import display_memory, record_measurements, unattributed_memory
from gpu_scheduler.core.scheduling.needs import resources_of
from gpu_scheduler.core.scheduling.pending_queue import allowed_gpus
from gpu_scheduler.core.scheduling.preemption import protection_left_s
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, start_wait_s, with_start_interval
from gpu_scheduler.core.scheduling.reconcile_attempt import (
    check_memory_release,
    has_ended,
    reconcile,
    release_allocation,
    watch_adopted,
)
from gpu_scheduler.core.scheduling.round_allocations import count_gpu_time

# Detects misplaced processes: processes of a job on a GPU outside its allocation.
#
# They are reported once per attempt and GPU. No job is ended or moved. GPUs whose processes the probe cannot
# list are skipped.


def misplaced_processes(facts: Facts) -> list[act.AttemptChanged]:
    """Returns the changes that record the misplaced processes of open attempts.

    For each attempt and GPU, only the process that uses the most memory is recorded.
    """
    running = {attempt.id: attempt for attempt in facts.attempts if attempt.state.is_open}
    found: dict[int, ActiveAttempt] = {}
    for gpu in (*facts.gpus, *facts.unmanaged_gpus) if running else ():
        processes = gpu.last.processes or ()
        for process in sorted(processes, key=lambda process: -(process.used_mib or 0)):
            attempt = running.get(gpu.owners.get(process.pid) or 0)
            attempt = attempt if attempt is None else found.get(attempt.id, attempt)
            if (
                attempt is None
                or process.graphics_only
                or gpu.uuid in (*attempt.gpus, *attempt.misplaced_gpus)
            ):
                continue
            listed = (*attempt.misplaced, (gpu.uuid, process.pid))
            found[attempt.id] = replace(attempt, misplaced=listed)
    return [act.AttemptChanged(running[attempt_id], new) for attempt_id, new in found.items()]


# Determines when the next round must take place if no event triggers one earlier.


def next_deadline(facts: Facts, next_retry: float | None) -> float | None:
    """Returns the next deadline in seconds since boot, or None if there is none.

    A deadline is a timeout, a retry, a repeated signal, the end of a protection against preemptions, or the
    next start that `--start-interval` allows.
    """
    times: list[float] = [] if next_retry is None else [next_retry]
    now, settings = facts.now.boot, facts.settings
    if facts.storage_issue is not None:
        times.append(now + 1.0)
    if start_wait_s(facts) and (facts.pending_groups or facts.reserved_jobs):
        times.append(now + start_wait_s(facts))
    for attempt in facts.attempts:
        if attempt.released_boot is not None:
            times.append(attempt.released_boot + settings.memory_release_s)
        elif attempt.state is AttemptState.ENDED or attempt.status.claim == "dead":
            times.append(now + _retry_delay(attempt.runner_died_boot or attempt.swept_boot, now))
        elif attempt.status.claim in ("none", "invalid"):
            # An overdue action that has not succeeded is tried again every second.
            waits = (
                facts.storage_issue is None
                and attempt.signalled_boot is None
                and attempt.launch_deadline_boot > now
            )
            times.append(attempt.launch_deadline_boot if waits else now + 1.0)
        elif attempt.status.stop is not None or attempt.stop_request is not None:
            times.append(now + 1.0)
        elif protection_left_s(attempt, facts.now):
            times.append(now + protection_left_s(attempt, facts.now))
    return min(times, default=None)


def _retry_delay(since: float | None, now: float) -> float:
    """Returns a delay that grows to 1 s. It is short at first, because processes may be about to end."""
    age = 0.0 if since is None else now - since
    return min(1.0, max(0.005, age / 2))


def _changes_allocations(action: act.Action) -> bool:
    """Returns whether an action changes what is allocated or reserved."""
    is_release = isinstance(action, act.AttemptChanged) and action.is_release
    return is_release or isinstance(action, (act.Start, act.SetQueueReservation))


def plan(facts: Facts) -> list[act.Action]:
    """Returns the actions of this round.

    A round that answers requests does nothing else, because a cancel must be in the store before its attempt
    is reconciled. The same applies to a round that skips jobs. Measurements come before the end of the
    attempt that they belong to. Jobs are placed only in a round that changes no allocations in other ways, so
    that every placement is based on the stored state.
    """
    actions = _plan(facts)
    changes = any(map(_changes_allocations, actions))
    return count_gpu_time(facts, allocations_change=changes) + actions


def _plan(facts: Facts) -> list[act.Action]:
    actions = _settled_first(facts)
    if actions:
        return actions
    facts, actions = find_suspects(facts)
    measurements = record_measurements(facts)
    actions += measurements
    measured = {one.new.id: one.new for one in measurements if isinstance(one, act.AttemptChanged)}
    for attempt in facts.attempts:
        actions += _attempt_actions(measured.get(attempt.id, attempt), facts)
    actions += misplaced_processes(facts)
    actions += _closed_windows(facts)
    closed = {one.new.id for one in actions if isinstance(one, act.AttemptChanged) and one.is_closed}
    if len(closed) < len(actions):
        return actions
    if requests.is_ending(facts):
        return actions
    adopted = watch_adopted(facts)
    if adopted:
        return actions + adopted
    recovered = recover_interrupted(facts)
    if recovered:
        return actions + recovered
    remaining = tuple(attempt for attempt in facts.attempts if attempt.id not in closed)
    facts = replace(facts, attempts=remaining)
    return actions + with_start_interval(place_jobs(facts), facts) + hand_over(facts)


def _settled_first(facts: Facts) -> list[act.Action]:
    """Returns the actions of a round that does nothing else."""
    settles: list[act.Action] = [act.SettleDependencies()] if facts.has_unsettled_dependencies else []
    return requests.answer_requests(facts) or settles


def _attempt_actions(attempt: ActiveAttempt, facts: Facts) -> list[act.Action]:
    """Returns the actions that follow from the state of one attempt and its folder."""
    now, settings = facts.now, facts.settings
    if attempt.state.is_open:
        blocked = facts.storage_issue is not None
        has_result = attempt.status.result is not None
        inventory = _gpu_inventory(attempt, facts) if has_result else GpuInventory()
        return reconcile(attempt, now, settings, inventory, starts_blocked=blocked)
    if attempt.state is AttemptState.ENDED:
        return release_allocation(attempt, now, settings)
    return check_memory_release(attempt, _memory_samples(attempt, facts), now, settings)


#: The actions that a round of a command takes only on attempts of named jobs and of those asked to stop.
_STOPPING = (act.RequestStop, act.WakeRunner, act.KillRunner, act.Sweep, act.VoidClaim)


def plan_for_command(facts: Facts, named: Collection[int]) -> list[act.Action]:
    """Returns the actions of a round that a command runs because no scheduler is running.

    Such a round answers requests, records what has ended, and ends the attempts that were asked to stop. It
    starts, watches, recovers and measures nothing; the next `start` does that. named: the jobs whose left
    processes it ends too. So it does for a request that waits until the end of an attempt is recorded.
    """
    actions = _settled_first(facts)
    if actions:
        return actions
    for attempt in facts.attempts:
        is_asked = (
            attempt.stop_request is not None
            or attempt.status.stop is not None
            or attempt.job_id in named
            or is_end_awaited(attempt, facts)
        )
        actions += [one for one in _attempt_actions(attempt, facts) if is_asked or not _is_stopping(one)]
    return [one for one in actions if not _is_launch(one)]


def is_end_awaited(attempt: ActiveAttempt, facts: Facts) -> bool:
    """Returns whether a request waits until the end of an attempt is recorded."""
    targets = {request.target for request in facts.requests}
    return has_ended(attempt, facts.now) and not targets.isdisjoint({str(attempt.job_id), ""})


def _is_stopping(action: act.Action) -> bool:
    """Returns whether an action ends an attempt, or the death of a runner is recorded to do so."""
    is_death = isinstance(action, act.AttemptChanged) and action.new.state is AttemptState.ORPHANED
    return is_death or isinstance(action, _STOPPING)


def _is_launch(action: act.Action) -> bool:
    """Returns whether an action launches an attempt, or allows further launches of it."""
    is_reset = isinstance(action, act.AttemptChanged) and action.new.launch_count != action.old.launch_count
    return is_reset or isinstance(action, act.Relaunch)


def _closed_windows(facts: Facts) -> list[act.Action]:
    """Records, once per attempt, the Screen windows that were closed while their jobs continue."""
    return [
        act.AttemptChanged(attempt, replace(attempt, window_closed=True))
        for attempt in facts.attempts
        if attempt.state.is_open and attempt.status.window_open is False and not attempt.window_closed
    ]


def _gpu_inventory(attempt: ActiveAttempt, facts: Facts) -> GpuInventory:
    """Returns the memory that the GPUs can provide to one job.

    This is all memory except the margin, the memory of displays, and unattributed memory with its possible
    variation.
    """
    sizes = {gpu.uuid: gpu.last.total_mib or gpu.total_mib for gpu in facts.gpus}
    totals = {uuid: total for uuid, total in sizes.items() if total}
    limits, count = facts.settings, max(1, len(attempt.gpus))
    free = [
        totals[gpu.uuid] - display_memory(gpu, limits)
        for gpu in allowed_gpus(resources_of(attempt), facts)
        if gpu.uuid in totals
    ]
    if len(free) < count:
        return GpuInventory(totals)
    kept = limits.margin_mib + limits.idle_threshold_mib + max(attempt.baseline_mib.values(), default=0)
    return GpuInventory(totals, sorted(free, reverse=True)[count - 1] - kept)


def _memory_samples(attempt: ActiveAttempt, facts: Facts) -> list[tuple[float | None, int | None]]:
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    samples: list[tuple[float | None, int | None]] = []
    for uuid in attempt.gpus:
        gpu = gpus.get(uuid)
        # An unmanaged GPU is not sampled and gets no jobs, so the round does not wait for its memory.
        samples.append(
            (gpu.sampled_boot, unattributed_memory(gpu, facts.attempts, facts.settings))
            if gpu
            else (facts.now.boot, None)
        )
    return samples
