"""Functions that build facts about GPUs and the attempts on them, for tests."""

from __future__ import annotations

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.placement import Ledger, declared_mib
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from tests.attempts import make_attempt, replace

TOTAL = 24_576
NOW = Now(1_700_000_000.0, 1000.0, "boot")


def gpu(
    index: int, used: int | None = None, processes: tuple[GpuProcess, ...] | None = (), **values: object
) -> Gpu:
    """Returns a 24 GiB GPU whose recorded sample is 1 s old.

    If `used` is None, the used memory is the sum of the processes' memory.
    """
    if used is None and processes is not None:
        used = sum(process.used_mib or 0 for process in processes)
    sample = GpuSample(f"U{index}", index, "GPU", TOTAL, used, 0.0, processes)
    base = Gpu(
        f"U{index}",
        index,
        sample=sample,
        sampled_boot=999.0,
        mean_load=0.0,
        foreign_loads=(0.0,),
        foreign_load_boot=999.0,
    )
    return replace(base, **values)


def running(attempt_id: int = 9, *uuids: str, **values: object) -> ActiveAttempt:
    """Returns an attempt that runs on these GPUs, by default on U0. Its newest sample is already recorded.

    Its share or vram counts as declared unless `budgets` are given.
    """
    base = make_attempt(
        attempt_id,
        10 * attempt_id,
        f"t{attempt_id}",
        "boot",
        AttemptState.RUNNING,
        uuids or ("U0",),
        status=AttemptStatus(claim="live", pid=5),
        measured_boot=999.0,
    )
    attempt = replace(base, **values)
    if "budgets" in values or not (attempt.share or attempt.vram):
        return attempt
    return replace(
        attempt, budgets={uuid: declared_mib(attempt.allocation_on(uuid), TOTAL) for uuid in attempt.gpus}
    )


def facts(*gpus: Gpu, attempts: tuple[ActiveAttempt, ...] = (), **values: object) -> Facts:
    """Returns the facts of a round with these GPUs and attempts."""
    return replace(Facts(NOW, Settings(), LlmConfig(), gpus, attempts=attempts), **values)


def ledger(index: int = 0, total: int | None = TOTAL, **values: object) -> Ledger:
    """Returns the ledger of a GPU with the default limits and these values."""
    return replace(Ledger(f"U{index}", index, Limits(), total), **values)


def ledgers(situation: Facts) -> list[Ledger]:
    """Returns the ledger of each GPU."""
    return [ledger_of(one, situation.attempts, situation.settings) for one in situation.gpus]


def round_of(gpus: int, *groups: PendingGroup, **values: object) -> Facts:
    """Returns the facts of a round with `gpus` idle GPUs and these waiting jobs."""
    base = facts(*map(gpu, range(gpus)), pending_groups=groups)
    return replace(base, **values)


def group(
    resources: ResourceSpec,
    *jobs: int | tuple[int, int],
    more: bool = False,
    reason: WaitReason | None = None,
) -> PendingGroup:
    """Returns a group of waiting jobs with the same resources.

    Each job is an id or an (id, priority) pair; their order is kept.
    """
    pairs = (job if isinstance(job, tuple) else (job, 200) for job in jobs)
    return PendingGroup(resources, tuple(QueuedJob(job, at, job) for job, at in pairs), more, reason)
