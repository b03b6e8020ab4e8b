"""Plays a queue forward, with dependencies and delays, and tells which starts rest on a guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import SetWaitReason
from gpu_scheduler.core.scheduling.effective_need import allowed_gpus
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.forecast_lengths import Lengths
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.playback import Playback, Run
from gpu_scheduler.core.scheduling.queue_placement import place_jobs

#: What stands for the GPUs of a job that uses none.
_NO_GPU = ("",)


@dataclass(frozen=True)
class WaitingJob:
    """A job that will start without the help of a user.

    parents: the unfinished jobs for which it waits. not_before: the earliest start in wall seconds, after a
    failed launch; 0 if there is no delay.
    """

    job: QueuedJob
    resources: ResourceSpec
    parents: tuple[int, ...] = ()
    not_before: float = 0.0


@dataclass(frozen=True)
class Played:
    """The runs of one playback, by job, each from its first start to its last end.

    resting: the jobs whose starts rest on a guess. reasons: why the jobs wait that have not started although
    they wait only for GPUs, by the key of their resources.
    """

    runs: Mapping[int, Run]
    resting: frozenset[int]
    reasons: Mapping[str, WaitReason]


def play(facts: Facts, waiting: Sequence[WaitingJob], lengths: Lengths) -> Played:
    """Plays the queue until nothing is left that ends."""
    now = facts.now.wall
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    missing = {one.job.job_id: set(one.parents) for one in waiting if one.parents}
    children: dict[int, list[WaitingJob]] = {}
    ready: dict[ResourceSpec, list[QueuedJob]] = {}
    for one in waiting:
        for parent in set(one.parents):
            children.setdefault(parent, []).append(one)
        if not one.parents and one.not_before <= now and one.job.job_id not in reserved:
            ready.setdefault(one.resources, []).append(one.job)
    groups = tuple(PendingGroup(resources, tuple(jobs)) for resources, jobs in ready.items())
    box = Playback(
        replace(facts, pending_groups=groups),
        lambda job: lengths.jobs[job.job_id].seconds if job.job_id in lengths.jobs else 0.0,
        {attempt_id: now + one.seconds for attempt_id, one in lengths.attempts.items()},
    )
    for one in waiting:
        if not one.parents and one.not_before > now:
            box.submit(one.job, one.resources, one.not_before)
    active = {one.attempt_id for one in facts.attempts if one.state.is_open}
    known = {one.attempt_id for one in facts.attempts}
    runs: dict[int, Run] = {}
    for run in box.play():
        if run.attempt_id in known and run.attempt_id not in active:
            continue  # its job has ended already, or waits again
        first = runs.get(run.job_id)
        runs[run.job_id] = run if first is None else replace(run, started_at=first.started_at)
        for child in () if run.is_preempted else children.get(run.job_id, ()):
            at, of = max(run.ended_at, child.not_before), missing[child.job.job_id]
            of.discard(run.job_id)
            if not of:
                box.submit(replace(child.job, waiting_since=at), child.resources, at)
    guesses = {
        one.job_id
        for one in facts.attempts
        if one.attempt_id in active and lengths.attempts[one.attempt_id].is_guess
    }
    guesses |= {job_id for job_id, one in lengths.jobs.items() if one.is_guess}
    reasons = _final_reasons(box)
    return Played(runs, _resting_on_guesses(runs.values(), guesses, waiting, facts), reasons)


def _final_reasons(box: Playback) -> dict[str, WaitReason]:
    """Returns why the jobs wait that have not started, by the key of their resources."""
    if not box.waiting:
        return {}
    return {one.spec_key: one.reason for one in place_jobs(box.facts) if isinstance(one, SetWaitReason)}


def _resting_on_guesses(
    runs: Iterable[Run], guesses: set[int], waiting: Sequence[WaitingJob], facts: Facts
) -> frozenset[int]:
    """Returns the jobs whose starts rest on a guess.

    That is a job that starts later than now if a run whose length or start rests on a guess has begun before
    on a GPU that the job may use, or if one of its parents is such a job. For jobs without a GPU, the other
    such jobs count instead.
    """
    by_id = {one.job.job_id: one for one in waiting}
    usable = {
        one.resources: frozenset(gpu.uuid for gpu in allowed_gpus(one.resources, facts))
        if one.resources.needs_gpus
        else frozenset(_NO_GPU)
        for one in waiting
    }
    now = facts.now.wall
    resting: set[int] = set()
    guessed_gpus: set[str] = set()
    for at, group in groupby(sorted(runs, key=_start), key=_start):
        together = list(group)
        for run in together:
            one = by_id.get(run.job_id)
            if one is None or at <= now:
                continue
            uncertain = guesses | resting
            if guessed_gpus & usable[one.resources] or any(parent in uncertain for parent in one.parents):
                resting.add(run.job_id)
        for run in together:
            if run.job_id in guesses or run.job_id in resting:
                guessed_gpus.update(run.gpus or _NO_GPU)
    return frozenset(resting)


def _start(run: Run) -> float:
    return run.started_at
