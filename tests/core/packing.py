"""A model of a machine whose jobs and foreign processes use GPU memory, for property tests of `plan`.

The model computes independently of `plan` which job fits where. It uses the samples and the rules in
docs/design.md, Accounting, and checks every start and every wait of `plan` against the result.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from msgspec import Struct

from gpu_scheduler.core.model.gpu import Gpu, GpuProcess, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, Allocation, AttemptStatus
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of
from gpu_scheduler.core.scheduling.placement import declared_mib
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace

MARGIN, IDLE, SPIKE, TOLERANCE = 512, 200, Fraction(1, 10), Fraction(1, 10)
#: The length of one tick of the model, in seconds.
TICK_S = 5.0


@dataclass(frozen=True)
class JobPlan:
    """A job that arrives at a tick and runs for some ticks.

    `uses` are percentages of its need, one per tick.
    """

    resources: ResourceSpec
    comes: int
    runs: int
    uses: tuple[int, ...]


@dataclass(frozen=True)
class ForeignProcessPlan:
    """A foreign process on one GPU. `uses` are MiB, one per tick; None means that it is not on the GPU."""

    gpu: int
    comes: int
    stays: int
    uses: tuple[int | None, ...]
    graphics: bool = False

    def lives(self, tick: int) -> bool:
        return self.comes <= tick < self.comes + self.stays

    def use(self, tick: int) -> int | None:
        return self.uses[min(tick - self.comes, len(self.uses) - 1)] if self.lives(tick) else None


class Scene(Struct, frozen=True):
    """Everything that happens in one run of the model.

    `unattributed_mib` applies to every GPU. `sampled` says which ticks have a sample. `loads` and `paused`
    are indexed by tick and GPU. `loads` are the loads of foreign processes; each of our jobs causes a load of
    97 percent.
    """

    totals: tuple[int, ...]
    unattributed_mib: int
    jobs: tuple[JobPlan, ...]
    foreign_processes: tuple[ForeignProcessPlan, ...]
    sampled: tuple[bool, ...]
    loads: tuple[tuple[float, ...], ...]
    paused: tuple[tuple[bool, ...], ...]


@dataclass
class Running:
    """A running job and the tick in which it started."""

    job: JobPlan
    attempt: ActiveAttempt
    since: int


@dataclass
class Machine:
    """Plays a scene. Keeps the machine's actual state, its samples, and the stored values."""

    scene: Scene
    settings: Settings = field(default_factory=Settings)
    tick: int = 0
    starts: int = 0
    queued: dict[int, JobPlan] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)
    samples: dict[int, Gpu] = field(default_factory=dict)
    foreign_peaks: dict[int, dict[tuple[int, float], int]] = field(default_factory=dict)
    reasons: dict[str, WaitReason] = field(default_factory=dict)
    overuse_records: Counter[tuple[int, str]] = field(default_factory=Counter)
    #: Peaks in the samples so far, in MiB: first by index of the foreign process, then by (attempt, GPU).
    foreign_process_peaks: dict[int, int] = field(default_factory=dict)
    peaks: dict[tuple[int, int], int] = field(default_factory=dict)
    #: The foreign load in each sample, and the recorded loads, both by GPU.
    foreign_loads: dict[int, list[float]] = field(default_factory=dict)
    recorded_loads: dict[int, tuple[tuple[float | None, ...], float | None]] = field(default_factory=dict)

    @property
    def now(self) -> Now:
        return Now(1_700_000_000.0, 1000.0 + TICK_S * self.tick, "boot")

    def play(self) -> None:
        """Plays every tick.

        Changes the machine, samples it if the scene says so, and plans until all is done.
        """
        for tick, sampled in enumerate(self.scene.sampled):
            self.tick = tick
            self.queued |= {n: job for n, job in enumerate(self.scene.jobs, 1) if job.comes == self.tick}
            for one in self.running.values():
                if one.attempt.state.is_open and self.tick >= one.since + one.job.runs:
                    one.attempt = replace(
                        one.attempt, state=AttemptState.RELEASED, survivors=(), released_boot=self.now.boot
                    )
            if sampled or not self.tick:
                self.sample()
            self.settle_down()
            self.check_invariants()

    def settle_down(self) -> None:
        for _ in range(30):
            facts = self.facts()
            actions = plan(facts)
            if not actions:
                return
            self.apply(facts, actions)
        raise AssertionError(f"rounds never settle: {actions}")

    def usage(self, one: Running, index: int) -> int | None:
        """Returns the MiB that a job uses on a GPU, or None before its process starts and after it ends."""
        age = self.tick - one.since
        if f"U{index}" not in one.attempt.gpus or not one.attempt.state.is_open or age < 1:
            return None
        total, need = self.scene.totals[index], self.need(one.job)
        base = need.vram if need.vram is not None else need.share * total // 1000
        return one.job.uses[min(age - 1, len(one.job.uses) - 1)] * base // 100

    def sample(self) -> None:
        for index, total in enumerate(self.scene.totals):
            processes: list[GpuProcess] = []
            owners: dict[int, int | None] = {}
            starts: dict[int, float] = {}
            load, foreign = self.scene.loads[self.tick][index], False
            for n, foreign_plan in enumerate(self.scene.foreign_processes):
                use = foreign_plan.use(self.tick)
                if foreign_plan.gpu == index and use is not None:
                    # The first foreign process causes all of the load. The load of a process that only drives
                    # a display does not count.
                    makes = 97.0 if foreign_plan.graphics else 0.0 if foreign else load
                    foreign = foreign or not foreign_plan.graphics
                    processes.append(GpuProcess(100 + n, use, foreign_plan.graphics, makes))
                    owners[100 + n], starts[100 + n] = None, n + 0.5
                    self.foreign_process_peaks[n] = max(use, self.foreign_process_peaks.get(n, 0))
            for one in self.running.values():
                use = self.usage(one, index)
                if use is not None:
                    attempt_id = one.attempt.id
                    processes.append(GpuProcess(1000 + attempt_id, use, load_percent=97.0))
                    owners[1000 + attempt_id] = attempt_id
                    self.peaks[attempt_id, index] = max(use, self.peaks.get((attempt_id, index), 0))
            used = self.scene.unattributed_mib + sum(process.used_mib or 0 for process in processes)
            self.foreign_loads.setdefault(index, []).append(load if foreign else 0.0)
            gpu_sample = GpuSample(f"U{index}", index, "GPU", total, used, 97.0, tuple(processes))
            self.samples[index] = Gpu(
                f"U{index}", index, sample=gpu_sample, sampled_boot=self.now.boot, mean_load=97.0,
                owners=owners, process_starts=starts,
            )  # fmt: skip

    def facts(self) -> Facts:
        gpus = []
        for index, gpu in self.samples.items():
            listed = {p.pid for p in (gpu.sample.processes if gpu.sample else None) or ()}
            held = {
                key: mib
                for key, mib in self.foreign_peaks.get(index, {}).items()
                if key[0] in listed or self.scene.foreign_processes[key[0] - 100].lives(self.tick)
            }
            loads, at = self.recorded_loads.get(index, ((), None))
            paused = self.scene.paused[self.tick][index]
            gpus.append(
                replace(gpu, foreign_peaks=held, paused=paused, foreign_loads=loads, foreign_load_boot=at)
            )
        lines: dict[ResourceSpec, list[QueuedJob]] = {}
        for job_id, job in self.queued.items():
            lines.setdefault(job.resources, []).append(QueuedJob(job_id, 200, job_id))
        return Facts(
            self.now,
            self.settings,
            LlmConfig(),
            tuple(gpus),
            attempts=tuple(one.attempt for one in self.running.values()),
            pending_groups=tuple(
                PendingGroup(ask, tuple(jobs), False, self.reasons.get(ask.key()))
                for ask, jobs in lines.items()
            ),
        )

    def apply(self, facts: Facts, actions: list[act.Action]) -> None:
        started: list[act.Start] = []
        for action in actions:
            if isinstance(action, act.Start):
                self.check_start(facts, action, started)
                started.append(action)
                self.start(action)
            elif isinstance(action, act.AttemptChanged):
                self.change(action.old, action.new)
            elif isinstance(action, act.GpuChanged):
                gpu = action.new
                self.recorded_loads[gpu.index] = (gpu.foreign_loads, gpu.foreign_load_boot)
                self.foreign_peaks[gpu.index] = dict(gpu.foreign_peaks)
            else:
                assert isinstance(action, act.SetWaitReason), action
                self.reasons[action.spec_key] = action.reason

    def change(self, old: ActiveAttempt, new: ActiveAttempt) -> None:
        if new.state is AttemptState.CLOSED:
            del self.running[new.id]
            return
        self.running[new.id].attempt = new
        for before, after in zip(old.allocations, new.allocations, strict=True):
            if after.overuse_logged and not before.overuse_logged:
                self.overuse_records[new.id, after.gpu] += 1
                assert after.peak_mib is not None
                assert after.budget_mib is not None
                assert after.peak_mib > after.budget_mib * (1 + TOLERANCE)

    def start(self, action: act.Start) -> None:
        self.starts += 1
        job = self.queued.pop(action.job_id)
        attempt = make_attempt(
            self.starts,
            action.job_id,
            f"t{self.starts}",
            "boot",
            AttemptState.RUNNING,
            action.gpus,
            action.share,
            action.vram,
            action.whole,
            self.declared(action),
            status=AttemptStatus(claim="live", pid=5),
            baseline_mib=dict(action.baseline_mib),
            launch_deadline_boot=self.now.boot + self.settings.launch_deadline_s,
        )
        self.running[self.starts] = Running(job, attempt, self.tick)

    def declared(self, action: act.Start) -> dict[str, int | None]:
        booking = Allocation(action.share, action.vram, action.whole)
        is_declared = not action.assumed and bool(action.share or action.vram)
        return {
            uuid: declared_mib(booking, self.scene.totals[int(uuid[1:])])
            for uuid in action.gpus
            if is_declared
        }

    def need(self, job: JobPlan) -> Need:
        return need_of(job.resources, Facts(self.now, self.settings, LlmConfig()))

    def declared_on(self, attempt: ActiveAttempt, index: int) -> int | None:
        """Returns the MiB that the attempt's job declared, or None.

        A declared vram counts first, otherwise the share of the GPU (all of it if the attempt has the whole
        GPU).
        """
        ask = self.running[attempt.id].job.resources
        if ask.vram is not None or ask.share is None:
            return ask.vram
        return (1000 if attempt.whole else min(1000, ask.share)) * self.scene.totals[index] // 1000

    def budget(self, attempt: ActiveAttempt | act.Start, index: int) -> int:
        """Returns how many MiB an allocation counts as.

        Computes them from the samples by the rules in docs/design.md, Accounting.
        """
        total = self.scene.totals[index]
        if attempt.whole:
            return total
        peak = self.peaks.get((attempt.id, index), 0) if isinstance(attempt, ActiveAttempt) else 0
        buffered = math.ceil(peak * (1 + SPIKE))
        if attempt.vram is not None:
            return buffered if peak > attempt.vram else attempt.vram
        return max(attempt.share * total // 1000, buffered)

    def share(self, attempt: ActiveAttempt | act.Start, index: int) -> int:
        if attempt.whole:
            return 1000
        part = Fraction(1000 * self.budget(attempt, index), self.scene.totals[index])
        return attempt.share or min(1000, math.ceil(part))

    def foreign_commitment(self, index: int) -> int:
        """Returns the MiB reserved for foreign use.

        Adds the buffered peaks of foreign processes that are alive or in the newest sample to the
        unattributed memory.
        """
        sample = self.samples[index].sample
        listed = {process.pid for process in (sample.processes if sample else None) or ()}
        alive = [
            n
            for n, foreign_plan in enumerate(self.scene.foreign_processes)
            if foreign_plan.gpu == index and n in self.foreign_process_peaks
            if foreign_plan.lives(self.tick) or 100 + n in listed
        ]
        return self.scene.unattributed_mib + sum(
            math.ceil(self.foreign_process_peaks[n] * (1 + SPIKE)) for n in alive
        )

    def fits(self, need: Need, index: int, started: list[act.Start]) -> bool:
        """Returns whether one more job fits on a GPU. `started` are the earlier starts of the same round."""
        sample, total = self.samples[index].sample, self.scene.totals[index]
        assert sample is not None
        assert sample.processes is not None
        assert sample.used_mib is not None
        here = [one.attempt for one in self.running.values() if f"U{index}" in one.attempt.gpus]
        new = {action.job_id for action in started}
        old = [a for a in here if a.job_id not in new]
        others = [p for p in sample.processes if p.pid < 1000 and not p.graphics_only]
        foreign = sum(process.used_mib or 0 for process in others)
        if self.scene.paused[self.tick][index] or any(a.released_boot is not None for a in here):
            return False
        loads = self.foreign_loads[index][-3:]
        if foreign > IDLE and sum(loads) >= 80 * len(loads):
            return False
        if foreign > IDLE and foreign * 10 >= 8 * total and need.vram is None:
            return False
        if (need.alone and foreign > IDLE) or (need.whole and here) or any(a.whole for a in here):
            return False
        if need.share and sum(self.share(a, index) for a in here) + need.share > 1000:
            return False
        if need.vram is None:
            return True
        committed = max(
            sum(self.budget(a, index) for a in old) + self.foreign_commitment(index), sample.used_mib
        )
        committed += sum(self.budget(a, index) for a in here if a.job_id in new)
        return committed + need.vram + MARGIN <= total

    def check_start(self, facts: Facts, action: act.Start, started: list[act.Start]) -> None:
        job = self.queued[action.job_id]
        need = need_of(job.resources, facts)
        assert (action.share, action.vram, action.whole) == (need.share, need.vram, need.whole)
        assert len(set(action.gpus)) == len(action.gpus) == need.count
        for uuid in action.gpus:
            index = int(uuid[1:])
            assert job.resources.allowed is None or index in job.resources.allowed
            assert self.fits(need, index, started), (need, index, self.tick)

    def check_invariants(self) -> None:
        """Checks that no waiting job could start.

        Also checks that peaks are recorded, and that each overuse is recorded once.
        """
        for job in self.queued.values():
            need = self.need(job)
            fitting = [
                index
                for index in range(len(self.scene.totals))
                if (job.resources.allowed is None or index in job.resources.allowed)
                and self.fits(need, index, [])
            ]
            assert len(fitting) < need.count, (job, fitting, self.tick)
            assert self.reasons[job.resources.key()]
        for one in self.running.values():
            attempt = one.attempt
            for uuid in attempt.gpus if attempt.state.is_open else ():
                peak = self.peaks.get((attempt.id, int(uuid[1:])), 0)
                assert attempt.peaks.get(uuid, 0) == peak
                declared = self.declared_on(attempt, int(uuid[1:]))
                over = declared is not None and peak > declared * (1 + TOLERANCE)
                assert self.overuse_records[attempt.id, uuid] == over
