"""The parts of the stress tests, with the promise that each one tests and the sizes at which it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.stress import (
    claims,
    copied_stores,
    damaged_attempts,
    deleted_stores,
    dependencies,
    dependency_steps,
    double_allocation,
    endings,
    failpoints,
    hidden_processes,
    kills,
    mutations,
    pauses,
    planted_files,
    powercut,
    preemptions,
    priority_preemptions,
    random_queues,
    redis_scenes,
    repeated_posts,
    resource_limits,
    restored_stores,
    running,
    saves,
    shared_gpus,
    slurm_jobs,
    special_files,
    stop_during_start,
    suspects,
    turns,
)  # fmt: skip
from tests.stress.part import Findings, Order


@dataclass(frozen=True)
class Part:
    """One part.

    suite: the part's factor in the test suite, or None if it runs only at full size; control: the factor of
    its negative control, which must fail, or None if the part has no negative control of its own.
    """

    promise: str
    name: str
    run: Callable[[Order], Findings]
    suite: float | None
    control: float | None = None

    def __str__(self) -> str:
        return f"{self.promise} {self.name}"


#: The longest parts come first, so that parallel workers end at about the same time.
PARTS = (
    Part("P9", "pauses edited by three writers", pauses.toggles, suite=0.006, control=0.01),
    Part("P12", "jobs that wait for each other", dependencies.dependencies, suite=0.015, control=0.03),
    Part("P12", "scheduler killed at each step of a skip", dependency_steps.steps, suite=None),
    Part("P1 P2", "scheduler killed, direct", kills.direct, suite=0.012, control=0.03),
    Part("P1 P2", "scheduler killed, Screen", kills.screen, suite=0.012),
    Part("P3", "scheduler and Screen killed while jobs run", running.untouched, suite=0.012, control=0.03),
    Part("P3", "one GPU fails its jobs for a while", suspects.one_bad_gpu, suite=None),
    Part("P4", "every kind of end, direct", endings.direct, suite=None),
    Part("P2 P3", "data directory copied or moved", copied_stores.copies, suite=None, control=0.01),
    Part("P2", "lock, database or data directory lost", deleted_stores.deletions, suite=None, control=0.01),
    Part("P6", "hidden processes", hidden_processes.hidden, suite=None, control=0.02),
    Part("P10", "files planted by another user", planted_files.planted, suite=None, control=0.02),
    Part("P8", "limits lowered and raised, direct", resource_limits.direct, suite=None, control=0.02),
    Part("P8", "limits lowered and raised, Screen", resource_limits.screen, suite=None),
    Part("P8", "damaged attempt folders", damaged_attempts.damages, suite=None, control=0.01),
    Part("P1 P2", "database lost and restored", restored_stores.losses, suite=None, control=0.01),
    Part("P3", "stop during start", stop_during_start.stops, suite=0.005, control=0.003),
    Part("P8", "FIFOs, devices and endless files", special_files.special_files, suite=0.01, control=0.01),
    Part("P4", "every kind of end, unreliable Screen", endings.lying_screen, suite=0.02, control=0.06),
    Part("P7", "corrupted lines", mutations.mutations, suite=0.01, control=0.06),
    Part("P7", "saves in six styles, step by step", saves.steps, suite=0.03, control=0.01),
    Part("P7", "saves in six styles, live", saves.live, suite=None),
    Part("P1", "power cut, ext4", powercut.ext4, suite=0.05, control=0.05),
    Part("P1", "power cut, XFS", powercut.xfs, suite=None),
    Part("P1", "power cut, btrfs", powercut.btrfs, suite=None),
    Part("P1 P2", "scheduler killed at each failpoint", failpoints.failpoints, suite=None),
    Part("P11", "GPUs shared with run", shared_gpus.sharing, suite=0.015, control=0.03),
    Part("P15", "callers and a queue take turns", turns.turns, suite=None, control=0.15),
    Part("P15", "urgent jobs beside callers", turns.urgent, suite=None),
    Part("P16", "posts repeated after kills", repeated_posts.kills, suite=0.03, control=0.03),
    Part("P17", "boxes on Redis, killed and cut off", redis_scenes.kills, suite=0.004, control=0.004),
    Part("P17", "boxes on Redis, failing at each step", redis_scenes.steps, suite=None, control=1.0),
    Part("P17", "boxes on Redis, which loses data", redis_scenes.losses, suite=None),
    Part("P17", "a box on Redis lost for good", redis_scenes.dead_box, suite=None),
    Part("P18", "jobs on Slurm", slurm_jobs.jobs, suite=None, control=0.02),
    Part("P14", "random queues with preemptions", random_queues.queues, suite=0.012, control=0.008),
    Part(
        "P14", "jobs with real processes preempt others", priority_preemptions.jobs, suite=None, control=0.08
    ),
    Part("P13", "preemptions that meet other events", preemptions.races, suite=0.02, control=0.02),
    Part("P2", "ten schedulers at once", claims.instances, suite=0.05, control=0.25),
    Part("P5", "memory allocated twice", double_allocation.allocations, suite=0.015, control=0.02),
    Part("P2", "races for a claim", claims.races, suite=0.03, control=0.1),
    Part("P2", "races of runners", claims.runners, suite=None, control=0.03),
    Part("P3", "restart with many jobs running", running.ready, suite=0.05),
)
