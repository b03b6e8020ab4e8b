"""Builds the view of each managed GPU, with the jobs to which it is allocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.placement import allocated_mib, allocated_share
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.show import job_views
from gpu_scheduler.show.gpu_text import PAUSE_CAUSES
from gpu_scheduler.show.job_views import GpuView
from gpu_scheduler.store.events import pause_causes
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import (
    LOCK_FOLDER_KEY,
    ForeignClaims,
    LockReading,
    keeper,
    read_locks_of,
    turn_claim,
)

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import ActiveAttempt


# Reads the claims of other programs on the managed GPUs, in the lock folder that the scheduler recorded.


def read_locks(store: Store) -> LockReading:
    """Returns the locks on the managed GPUs. Raises OSError in a shortage of open files or memory."""
    folder = store.db.meta(LOCK_FOLDER_KEY)
    return LockReading() if folder is None else read_locks_of(Path(folder), store.managed_gpus().values())


def foreign_claims(
    store: Store, before: LockReading, attempts: Iterable[ActiveAttempt], scheduler_pid: int | None
) -> ForeignClaims:
    """Returns the claims of other programs, and the GPUs that they keep for jobs without a claim.

    before: the locks that were read before the attempts. attempts: the open attempts. scheduler_pid: None if
    no scheduler is running. Raises OSError in a shortage of open files or memory.
    """
    found = _foreign_claims(store, before, attempts, scheduler_pid)
    folder = store.db.meta(LOCK_FOLDER_KEY)
    uuids = () if folder is None else store.managed_gpus().values()
    keepers = {uuid: keeper(Path(folder or ""), uuid) for uuid in uuids}
    kept = {uuid: (turn_claim(pid),) for uuid, pid in keepers.items() if pid not in {None, scheduler_pid}}
    return replace(found, claims={**kept, **found.claims})


def _foreign_claims(
    store: Store, before: LockReading, attempts: Iterable[ActiveAttempt], scheduler_pid: int | None
) -> ForeignClaims:
    if not before.locks:
        return ForeignClaims(problems=before.problems)
    # Imported only if there are locks, so that `status` stays fast where no job is running.
    from gpu_scheduler.attempts.observe import runner_pids

    totals = {gpu.uuid: gpu.total_mib for gpu in store.gpus()}
    found = before.foreign_claims(totals, runner_pids(attempts), scheduler_pid)
    if not found.claims:
        return found
    # The scheduler may have recorded the end of an attempt in the meantime, so that its runner is not left
    # out. Such a runner no longer holds a lock.
    after = read_locks(store).locks
    held = {uuid: {lock.pid for lock in after.get(uuid, ())} for uuid in found.claims}
    remaining = {
        uuid: tuple(claim for claim in claims if claim.pid in held[uuid])
        for uuid, claims in found.claims.items()
    }
    return ForeignClaims({uuid: claims for uuid, claims in remaining.items() if claims}, found.problems)


_DEFAULT_LIMITS = Limits()
_NO_CLAIMS = ForeignClaims()
_NOT_RESERVED: Mapping[str, tuple[int, ...]] = {}
#: The need of a job that declares no memory.
_UNDECLARED = Need(1, WHOLE)


def gpu_views(
    gpus: Iterable[Gpu],
    attempts: Iterable[Attempt],
    paused: Mapping[str, bool],
    limits: Limits = _DEFAULT_LIMITS,
    foreign: ForeignClaims = _NO_CLAIMS,
    reserved: Mapping[str, tuple[int, ...]] = _NOT_RESERVED,
) -> tuple[GpuView, ...]:
    """Returns the views of the GPUs.

    attempts: the attempts that are not yet reconciled; paused: whether each GPU, by UUID, will be paused once
    all pending requests are applied; limits: the scheduler's limits; foreign: the claims of other programs;
    reserved: the ids of the jobs for which each reserved GPU is reserved, by UUID.
    """
    holders: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.state.holds_gpus:
            for uuid in attempt.gpus:
                holders.setdefault(uuid, []).append(attempt)
    views = (
        _gpu_view(gpu, holders.get(gpu.uuid, []), paused.get(gpu.uuid, False), limits, foreign)
        for gpu in gpus
    )
    return tuple(_with_reservation(view, reserved.get(view.record.uuid, ())) for view in views)


def with_pause_reasons(store: Store, views: tuple[GpuView, ...]) -> tuple[GpuView, ...]:
    """Returns the views with the reasons why GPUs are paused."""
    if not any(view.record.paused for view in views):
        return views
    causes = pause_causes(store)
    # A GPU that only a request pauses has no event yet.
    return tuple(
        replace(view, pause_reason=PAUSE_CAUSES.get(causes.get(view.record.index)))
        if view.state == job_views.PAUSED and view.record.paused
        else view
        for view in views
    )


def _with_reservation(view: GpuView, jobs: tuple[int, ...]) -> GpuView:
    """Returns the view of a GPU that is reserved for these jobs."""
    is_shown = jobs and view.state == job_views.AVAILABLE
    return replace(view, reserved_for=jobs, state=job_views.RESERVED if is_shown else view.state)


def _gpu_view(
    gpu: Gpu, holders: list[Attempt], paused: bool, limits: Limits, foreign: ForeignClaims
) -> GpuView:
    total = gpu.total_mib
    allocations = [attempt.allocation_on(gpu.uuid) for attempt in holders]
    share = sum(allocated_share(one, total, limits.spike_buffer) for one in allocations)
    return GpuView(
        gpu,
        state=_state(gpu, share, paused, limits, foreign),
        share=share,
        jobs=tuple(sorted({attempt.job_id for attempt in holders})),
        allocated_mib=None
        if total is None
        else sum(allocated_mib(one, total, limits.spike_buffer) for one in allocations),
        has_declared_memory=any(one.vram is not None for one in allocations),
        claims=foreign.claims.get(gpu.uuid, ()),
        claims_problem=foreign.problems.get(gpu.uuid),
    )


def _state(gpu: Gpu, share: int, paused: bool, limits: Limits, foreign: ForeignClaims) -> str:
    if gpu.fault is not None:
        return job_views.LOST
    if paused:
        return job_views.PAUSED
    if gpu.suspicion is not None:
        return job_views.SUSPECT
    if share == 0 and (gpu.uuid in foreign.claims or gpu.uuid in foreign.problems):
        return job_views.CLAIMED
    return (
        job_views.BUSY
        if share >= (1 if gpu.last.exclusive else WHOLE)
        or (share == 0 and ledger_of(gpu, (), limits).foreign_use(_UNDECLARED))
        else job_views.AVAILABLE
    )
