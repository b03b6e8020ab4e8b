"""Builds the facts with which the next round places jobs, from the store and the observed attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import Gpu, GpuSample, Snapshot
from gpu_scheduler.core.model.job import ActiveAttempt, Job
from gpu_scheduler.core.model.job_spec import JobSpec, Need
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of
from gpu_scheduler.gpus.watch import GpuWatch, watched_processes
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.store.attempt_history import (
    LearnedNeedsReader,
    QueueStartsReader,
    RunTimesReader,
    gpu_time,
)
from gpu_scheduler.store.pending_groups import queue_reservation, reserved_jobs
from gpu_scheduler.store.state_file import requested_pauses
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import ForeignClaims

# Determines a job's need, as the scheduler does, and where that need comes from.
#
# A need comes from the job's line, from llm_config.json, or from the measured use of finished jobs.


class NeedSource(str, Enum):
    """Where a job's need comes from."""

    EARLIER_ATTEMPT = "from an earlier attempt"
    TORCHRUN = "torchrun"
    ATTRIBUTES = "from its attributes"
    LEARNED = "measured use of finished jobs of its kind"
    MODEL = "the model on its line"
    COMMAND = "the command declares nothing"
    DEFAULT = "default_requirement"


class CurrentNeed(Struct, frozen=True):
    """A job's current need, the source of that need, and what the job's line requests."""

    need: Need
    source: NeedSource
    spec: JobSpec


def learned_needs(store: Store) -> Mapping[str, int]:
    """Returns the learned MiB of each workload class; empty unless the scheduler runs with --learn."""
    return (
        LearnedNeedsReader(store, store.recorded_options().spike_buffer).needs(store.marks())
        if store.learning
        else {}
    )


def current_need(store: Store, job: Job) -> CurrentNeed:
    """Returns the need that the scheduler would currently determine for a job."""
    started = store.recorded_options()
    config, learned = current_llm_config(started), learned_needs(store)
    facts = Facts(
        Clock().now(),
        started,
        config,
        tuple(_empty_gpu(gpu) for gpu in store.gpus()),
        learned_mib=learned,
    )
    resources = ResourceSpec.from_key(job.spec_key)
    need = need_of(resources, facts)
    is_learned = (
        need.vram is not None and resources.workload_class in learned and resources.llm not in config.models
    )
    return CurrentNeed(need, _source(job, is_learned), job.spec)


def _empty_gpu(gpu: Gpu) -> Gpu:
    """Returns the GPU as if nothing were running on it; only its size is kept."""
    empty = GpuSample(gpu.uuid, gpu.index, gpu.last.name, gpu.total_mib)
    return Gpu(gpu.uuid, gpu.index, sample=empty)


def _source(job: Job, is_learned: bool) -> NeedSource:
    spec = job.spec
    if job.min_vram_mib is not None and spec.gpus != 0:
        return NeedSource.EARLIER_ATTEMPT
    if spec.torchrun is not None:
        return NeedSource.TORCHRUN
    if spec.share is not None or spec.gpus is not None or spec.vram is not None:
        return NeedSource.ATTRIBUTES
    if is_learned:
        return NeedSource.LEARNED
    if spec.llm is not None:
        return NeedSource.MODEL
    return NeedSource.COMMAND if spec.kind == "command" else NeedSource.DEFAULT


# Builds the facts with which placement evaluates the managed GPUs, from the stored samples.


def _judged_gpus(
    store: Store, attempts: Sequence[ActiveAttempt], now: Now, foreign: ForeignClaims
) -> tuple[Gpu, ...]:
    """Returns the managed GPUs as placement evaluates them. attempts, foreign: as for `round_facts`."""
    records, paused = store.gpus(), requested_pauses(store)
    sampled = [gpu for gpu in records if gpu.sampled_at is not None]
    watch = GpuWatch()
    # Replays the samples, newest last. Only the GPU load of earlier samples is stored, and only it matters.
    for ago in reversed(range(max((len(gpu.loads) for gpu in sampled), default=1) or 1)):
        samples = [_sample(gpu, ago) for gpu in sampled if ago < max(1, len(gpu.loads))]
        watch.accept_sample(Snapshot(now.boot, tuple(samples)))
    tokens = {attempt.token: attempt.id for attempt in attempts}
    managed = [replace(gpu, paused=paused.get(gpu.uuid, False)) for gpu in records]
    return tuple(
        replace(
            gpu,
            claims=foreign.claims.get(gpu.uuid, ()),
            claims_problem=foreign.problems.get(gpu.uuid),
        )
        for gpu in watch.gpus(managed, tokens, watched=watched_processes(attempts))
    )


def _sample(gpu: Gpu, samples_back: int) -> GpuSample:
    return replace(gpu.last, load_percent=gpu.loads[-1 - samples_back] if gpu.loads else None)


def round_facts(store: Store, attempts: Sequence[ActiveAttempt], now: Now, foreign: ForeignClaims) -> Facts:
    """Returns the facts of the next round, without the waiting jobs.

    attempts: all active attempts; foreign: the claims of other programs.
    """
    options, marks = store.recorded_options(), store.marks()
    return Facts(
        now,
        options,
        current_llm_config(options),
        _judged_gpus(store, attempts, now, foreign),
        attempts=tuple(attempts),
        learned_mib=learned_needs(store),
        reserved_jobs=tuple(reserved_jobs(store, now)),
        queue_reservation=queue_reservation(store),
        overtakes=QueueStartsReader(store).overtakes(marks),
        run_times=RunTimesReader(store).run_times(marks),
        gpu_time=gpu_time(store, now.wall),
    )
