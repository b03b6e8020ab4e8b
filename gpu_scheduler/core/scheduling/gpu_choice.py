"""Chooses GPUs for a command of `run` or `wait`, without a queue.

Decides which GPUs are eligible now and in which order, why the others are not, and whether the request can
never be met.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import ClaimedGpu, GpuCriteria, GpuSample
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind


class GpuChoice(Struct, frozen=True):
    """The eligible GPUs, best first, and the reasons why the other GPUs are not eligible, by index."""

    eligible: tuple[ClaimedGpu, ...]
    ineligible: tuple[GpuObstacle, ...]


class ImpossibilityKind(str, Enum):
    """The kind of the reason why a request can never be met."""

    NO_SUCH_GPU = "no such GPU"
    TOO_FEW_GPUS = "too few GPUs"
    TOO_LITTLE_MEMORY = "too little memory"


class Impossibility(Struct, frozen=True):
    """The reason why a request can never be met.

    gpus: the indices of the GPUs that the request allows; for NO_SUCH_GPU, of all GPUs that may be used.
    missing: NO_SUCH_GPU: the indices that are not among them. suitable_count: TOO_LITTLE_MEMORY: the number
    of these GPUs that have enough memory in all. largest_mib: TOO_LITTLE_MEMORY: the memory of the largest of
    them.
    """

    kind: ImpossibilityKind
    criteria: GpuCriteria
    gpus: tuple[int, ...]
    missing: tuple[int, ...] = ()
    suitable_count: int = 0
    largest_mib: int = 0


def choose(gpus: Sequence[ClaimedGpu], criteria: GpuCriteria) -> GpuChoice:
    """Returns which of these GPUs are eligible, ordered by most free memory, least utilization and index.

    Memory that another program claims does not count as free. GPUs that the lists of the criteria do not
    allow are left out.
    """
    allowed = [gpu for gpu in gpus if criteria.allows(gpu.sample.index)]
    reasons = {gpu.sample.index: _obstacle(gpu, criteria) for gpu in allowed}
    eligible = sorted((gpu for gpu in allowed if reasons[gpu.sample.index] is None), key=_rank)
    return GpuChoice(
        tuple(eligible), tuple(reason for _, reason in sorted(reasons.items()) if reason is not None)
    )


def in_line(gpus: Sequence[ClaimedGpu], criteria: GpuCriteria) -> tuple[ClaimedGpu, ...]:
    """Returns the GPUs for which a command waits in line.

    It could take them now or, if it wants only one, as soon as the claims on the whole of them end; what uses
    a claimed GPU is expected to end with the claim. A command for several GPUs never keeps one idle.
    """
    eligible = choose(gpus, criteria).eligible
    if criteria.count > 1:
        return eligible if len(eligible) >= criteria.count else ()
    claimed = {gpu.sample.uuid: gpu for gpu in gpus if gpu.claims}
    empty = [
        replace(gpu, sample=replace(gpu.sample, used_mib=0, load_percent=0.0), claims=())
        for gpu in claimed.values()
        if all(claim.mib is None for claim in gpu.claims)
    ]
    return eligible + tuple(claimed[gpu.sample.uuid] for gpu in choose(empty, criteria).eligible)


def impossibility(samples: Collection[GpuSample], criteria: GpuCriteria) -> Impossibility | None:
    """Returns why these GPUs can never meet the criteria, whatever their state; None if they can."""
    existing = tuple(sorted(sample.index for sample in samples))
    missing = tuple(sorted(set(criteria.only or ()) - set(existing)))
    if missing:
        return Impossibility(ImpossibilityKind.NO_SUCH_GPU, criteria, existing, missing)
    allowed = [sample for sample in samples if criteria.allows(sample.index)]
    indices = tuple(sorted(sample.index for sample in allowed))
    if len(allowed) < criteria.count:
        return Impossibility(ImpossibilityKind.TOO_FEW_GPUS, criteria, indices)
    # A GPU whose memory is unknown, for example because of a fault, may turn out to have enough.
    large = [one for one in allowed if one.total_mib is None or one.total_mib >= criteria.needed_mib]
    if len(large) < criteria.count:
        return Impossibility(
            ImpossibilityKind.TOO_LITTLE_MEMORY,
            criteria,
            indices,
            suitable_count=len(large),
            largest_mib=max(sample.total_mib or 0 for sample in allowed),
        )
    return None


def _obstacle(gpu: ClaimedGpu, criteria: GpuCriteria) -> GpuObstacle | None:
    """Returns why a GPU does not meet the criteria; None if it does."""
    index, sample = gpu.sample.index, gpu.sample
    if sample.fault is not None:
        return GpuObstacle(index, ObstacleKind.FAULT, fault=sample.fault)
    if gpu.claims_problem:
        return GpuObstacle(index, ObstacleKind.CLAIMS_UNKNOWN, detail=gpu.claims_problem)
    if _is_claimed(gpu, criteria.claim_mib):
        return GpuObstacle(index, ObstacleKind.CLAIMED, claims=gpu.claims)
    if sample.exclusive and any(not one.graphics_only for one in sample.processes or ()):
        return GpuObstacle(index, ObstacleKind.EXCLUSIVE)
    available, load = gpu.available_mib, sample.load_percent
    if criteria.needed_mib and available is None:
        return GpuObstacle(index, ObstacleKind.MEMORY_UNKNOWN)
    if available is not None and available < criteria.needed_mib:
        claims = gpu.claims if available != gpu.free_mib else ()
        return GpuObstacle(index, ObstacleKind.MEMORY, claims=claims, free=available)
    if criteria.max_load_percent is None or (load is not None and load <= criteria.max_load_percent):
        return None
    if load is None:
        return GpuObstacle(index, ObstacleKind.LOAD_UNKNOWN)
    return GpuObstacle(index, ObstacleKind.FOREIGN_LOAD, foreign_load=round(load))


def _is_claimed(gpu: ClaimedGpu, wanted_mib: int | None) -> bool:
    """Returns whether the claims of other programs prevent a claim on this memory (None: the whole GPU)."""
    if wanted_mib is None or gpu.sample.exclusive:
        return bool(gpu.claims)
    return gpu.unclaimed_mib is not None and gpu.unclaimed_mib < wanted_mib


def _rank(gpu: ClaimedGpu) -> tuple[float, float, int]:
    free = -math.inf if gpu.available_mib is None else gpu.available_mib
    load = math.inf if gpu.sample.load_percent is None else gpu.sample.load_percent
    return -free, load, gpu.sample.index
