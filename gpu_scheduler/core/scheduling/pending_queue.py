"""Defines the order of the queue, the needs of its jobs, the limits of their groups and its place in line.

It also decides when a draining scheduler may exit, and with which code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job_spec import COMPLETED_OUTCOMES, Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve, resources_of
from gpu_scheduler.core.scheduling.placement import claim_size, could_fit

# Orders waiting jobs by priority and queue position. Everything that reads the queue uses this order.


def queue_key(job: QueuedJob) -> tuple[int, int, int]:
    """Returns the key by which waiting jobs are sorted."""
    return *job.place, job.job_id


def in_queue_order(groups: Iterable[PendingGroup]) -> list[PendingGroup]:
    """Returns the groups whose jobs need GPUs, in the order of their first jobs."""
    return sorted(
        (one for one in groups if one.jobs and one.resources.needs_gpus),
        key=lambda one: queue_key(one.jobs[0]),
    )


# Determines the current need of a job, with what was learned and with the options of the scheduler.


def need_of(resources: ResourceSpec, facts: Facts) -> Need:
    """Returns the current need of a job with these resources.

    Learned memory applies only if some GPU would still have room for another job. Otherwise the job counts as
    one that declares nothing.
    """
    need = resolve(resources, facts.config, facts.learned_mib)
    if resources.workload_class in facts.learned_mib and not _leaves_room(need, resources, facts):
        need = resolve(resources, facts.config)
    return replace(need, exclusive=True) if facts.settings.exclusive and need.count else need


def _leaves_room(need: Need, resources: ResourceSpec, facts: Facts) -> bool:
    limits = facts.settings
    beside = replace(limits, margin_mib=limits.margin_mib + limits.idle_threshold_mib)
    return any(could_fit(need, gpu.last.total_mib, beside) for gpu in allowed_gpus(resources, facts))


def allowed_gpus(resources: ResourceSpec, facts: Facts) -> list[Gpu]:
    """Returns the managed GPUs that a job with these resources may use."""
    return [gpu for gpu in facts.gpus if resources.allowed is None or gpu.index in resources.allowed]


#: All of a request but its size. If a GPU accepts a request, it accepts every smaller one of the kind too,
#: whatever else is on it or is reserved there.
RequestKind = tuple[tuple[int, ...] | None, Need]


class GroupRequest(NamedTuple):
    """The request of a pending group. size: MiB or, if it declares no memory, thousandths of a GPU."""

    need: Need
    kind: RequestKind
    size: int


def request_of(group: PendingGroup, facts: Facts) -> GroupRequest:
    """Returns the request of a group with its current need.

    A group remembers its request as long as nothing changes on which the need depends: to resolve 10,000
    needs takes 40 ms, which is most of a round.
    """
    resources = group.resources
    is_learned = resources.workload_class in facts.learned_mib
    basis = None if is_learned else (facts.config, facts.settings.exclusive)
    known: tuple[object, GroupRequest] | None = group.__dict__.get("_request")
    if known is None or basis is None or known[0] != basis:
        need = need_of(resources, facts)
        if need.vram is None:
            request = GroupRequest(need, (resources.allowed, replace(need, share=0)), need.share)
        else:
            request = GroupRequest(need, (resources.allowed, replace(need, vram=0)), need.vram)
        known = group.__dict__["_request"] = basis, request
    return known[1]


# Limits how many jobs of a group (attribute `max-running`) and jobs without a GPU run at the same time.
#
# Of the jobs of a group that run or wait only for GPUs, the smallest `max-running` counts. The jobs without a
# GPU are one more group, whose limit is `--cpu-jobs`. A job of a full group is passed over in every respect:
# it gets no GPUs and no reservation, and preempts no other job. A job for which GPUs are reserved counts as
# running, so that no other job of its group takes its place.


class GroupLimits:
    """The jobs of each group that run, or are about to in this round, and how many of them may."""

    def __init__(self, facts: Facts) -> None:
        running = [(resources_of(one), not one.is_on_engine) for one in facts.attempts if one.state.is_open]
        reserved = [one.resources for one in facts.reserved_jobs]
        self._most: dict[str | None, int] = {None: facts.settings.cpu_jobs}
        waiting = [*facts.pending_groups, *(one for found in facts.engine_groups.values() for one in found)]
        self._lower((*(one for one, _ in running), *reserved, *(one.resources for one in waiting)))
        self._taken = Counter(group for one, is_local in running for group in _groups_of(one, is_local))

    def _lower(self, every: Iterable[ResourceSpec]) -> None:
        for one in every:
            if one.group is not None and one.max_running is not None:
                self._most[one.group] = min(one.max_running, self._most.get(one.group, one.max_running))

    def refusal(self, resources: ResourceSpec, *, is_local: bool = True) -> WaitReason | None:
        """Returns why no other job with these resources may run now; None if one may.

        is_local: whether it would run on this machine.
        """
        if resources.group is None and (resources.needs_gpus or not is_local):
            return None
        self._lower([resources])
        for group in _groups_of(resources, is_local):
            taken, most = self._taken[group], self._most.get(group)
            if most is not None and taken >= most:
                kind = WaitKind.CPU_JOBS_FULL if group is None else WaitKind.GROUP_FULL
                return WaitReason(kind, group or "", running=taken, max_running=most)
        return None

    def take(self, resources: ResourceSpec, *, is_local: bool = True) -> None:
        """Counts one more job with these resources as running."""
        self._taken.update(_groups_of(resources, is_local))


def _groups_of(resources: ResourceSpec, is_local: bool) -> list[str | None]:
    """Returns the groups in which a job with these resources counts; None: the jobs here without a GPU."""
    groups: list[str | None] = [] if resources.group is None else [resources.group]
    return groups if resources.needs_gpus or not is_local else [*groups, None]


# Decides where the queue waits in line with other programs, and what it keeps (docs/design.md, Turns).


#: Maximum number of groups, the first of the queue, among which a round looks for a job that waits in line.
_MAX_GROUPS = 32


def reserved_gpus(facts: Facts) -> set[str]:
    """Returns the GPUs that are reserved for jobs of the queue."""
    reservations = [*facts.reserved_jobs, *([facts.queue_reservation] if facts.queue_reservation else ())]
    return {uuid for one in reservations for uuid in one.gpus}


def freed_by_hand(facts: Facts) -> set[str]:
    """Returns the GPUs of the attempts that the user preempts."""
    stops = [(one, one.open_stop) for one in facts.attempts if one.state.is_open]
    by_hand = [one for one, stop in stops if stop and stop.cause == "preempted" and stop.preemptor is None]
    return {uuid for attempt in by_hand for uuid in attempt.gpus}


def claimed_gpus(facts: Facts) -> set[str]:
    """Returns the GPUs of which one program claims the whole."""
    totals = {gpu.uuid: gpu.total_mib for gpu in facts.gpus}
    own = [(one, uuid) for one in facts.attempts if one.state.is_open for uuid in one.gpus]
    return {
        *(gpu.uuid for gpu in facts.gpus if any(one.mib is None and not one.is_turn for one in gpu.claims)),
        *(uuid for one, uuid in own if claim_size(one.allocation_on(uuid), totals.get(uuid)) is None),
    }


def queue_since(waiting_since: float, facts: Facts) -> float:
    """Returns since when the queue waits as one program, in seconds since boot.

    With each start, it begins to wait anew. waiting_since: when its first job that fits began to wait, in
    wall seconds. A time more than a minute ahead does not count: the clock was set back.
    """
    times = [waiting_since, *(one.started_at for one in facts.overtakes.starts[-1:])]
    since = max((time for time in times if time <= facts.now.wall + 60), default=0.0)
    return facts.now.boot - (facts.now.wall - since)


def queue_line(facts: Facts, gpus: Collection[str], most: int = 1) -> dict[str, float]:
    """Returns for which of these GPUs, which are in use, the queue waits in line, and since when.

    most: the number of GPUs of the largest job that counts. A job for several GPUs does not wait in line
    before it fits, so that it keeps none of them idle.
    """
    found: dict[str, float] = {}
    if not gpus or facts.storage_issue is not None or facts.probe_error is not None:
        return found
    groups = GroupLimits(facts)
    for group in in_queue_order(facts.pending_groups)[:_MAX_GROUPS]:
        if groups.refusal(group.resources) is not None:
            continue
        need, limits = need_of(group.resources, facts), facts.settings
        for gpu in allowed_gpus(group.resources, facts) if need.count <= most else ():
            is_left_out = gpu.paused or gpu.suspicion is not None or gpu.uuid not in gpus
            sample = None if is_left_out else gpu.sample
            if sample and sample.fault is None and could_fit(need, sample.total_mib, limits):
                found.setdefault(gpu.uuid, queue_since(group.jobs[0].waiting_since, facts))
    return found


# Decides when a draining scheduler may exit.


def is_drained(facts: Facts, specs: Iterable[ResourceSpec], has_pending_retries: bool) -> bool:
    """Returns whether no job is live and no job can start unless the user does something.

    specs: the resource specs of all queued jobs, except jobs that wait for their lines or for other jobs (the
    latter cannot start before those); has_pending_retries: whether a queued job waits for its next try. Only
    the user can resume a paused GPU, or a suspect one if no job has tries left to try it, but a GPU that is
    lost or in foreign use may become available by itself.
    """
    specs = list(specs)
    is_busy = has_pending_retries or facts.requests or facts.attempts or facts.adopted_jobs
    if is_busy or (specs and not facts.all_sampled):
        return False
    has_suspect = any(gpu.suspicion for gpu in facts.gpus)
    tried = {
        gpu.uuid
        for group in (facts.pending_groups if has_suspect else ())
        if need_of(group.resources, facts).count == 1
        and any(job.has_tries_left(facts.settings) for job in group.jobs)
        for gpu in allowed_gpus(group.resources, facts)
    }
    return all(_needs_user(spec, facts, tried) for spec in specs)


def _needs_user(resources: ResourceSpec, facts: Facts, tried: Collection[str]) -> bool:
    need = need_of(resources, facts)
    usable = [
        gpu
        for gpu in allowed_gpus(resources, facts)
        if not gpu.paused
        and (gpu.suspicion is None or gpu.uuid in tried)
        and could_fit(need, gpu.last.total_mib, facts.settings)
    ]
    return need.count > len(usable)


# Determines the exit code of a `start` that has drained its queue or was stopped.


#: The exit code for a job that timed out. The command `timeout` uses the same code.
TIMED_OUT = 124
#: The exit code for an unfinished job that is held, is infeasible, may use only paused GPUs, or waits for a
#: job of this kind.
JOBS_LEFT = 3


def drained_exit_code(job_codes: Iterable[int], *, has_malformed_line: bool) -> int:
    """Returns 0 if every job completed, otherwise the largest code of any job.

    A malformed line counts as a job with the code 1.
    """
    return max([*job_codes, int(has_malformed_line)])


def stopped_exit_code(*, drain: bool, signal: int | None) -> int:
    """Returns the exit code of a scheduler that was stopped. signal: None if a request stopped it."""
    if not drain:
        return 0
    return 128 + signal if signal else 1


def job_exit_code(
    state: JobState,
    outcome: Outcome | None,
    exit_code: int | None,
    signal: int | None,
    wait: WaitReason | None,
) -> int:
    """Returns the exit code that a job contributes when the queue is drained.

    This is the job's own exit code, 128 plus its signal, 124 if it timed out, 3 if it is held, is infeasible,
    may use only paused GPUs or waits for such a job, and 1 in all other cases, for example if it was skipped
    or if it waits because its line is malformed.
    """
    if state is not JobState.FINISHED:
        waits_for_line = wait is not None and wait.kind is WaitKind.LINE_MALFORMED
        return 1 if waits_for_line and state is JobState.QUEUED else JOBS_LEFT
    if outcome in COMPLETED_OUTCOMES:
        return 0
    if outcome is Outcome.TIMED_OUT:
        return TIMED_OUT
    if outcome is Outcome.FAILED and signal:
        return 128 + signal
    if outcome is Outcome.FAILED and exit_code:
        return exit_code
    return 1
