"""Waits until GPUs meet the criteria of a command, and claims them for this process, without a scheduler.

While it waits, the command takes turns with the other programs that could take the same GPU. Inside a job, or
below a process that claims whole GPUs, it uses GPUs of that job or process, and takes no claim of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_scheduler.app.claim_watch import ClaimWatch
from gpu_scheduler.app.gpu_source import GpuSource
from gpu_scheduler.app.machine_gpus import claim_folder, surrounding_claims, uuids_of, with_claims
from gpu_scheduler.claims.foreign_claims import LockReading
from gpu_scheduler.claims.gpu_claims import lock_problem, turn_claim
from gpu_scheduler.claims.own_claims import is_below_runner, own_claims
from gpu_scheduler.core.model.claimed_gpu import ClaimedGpu
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.core.model.gpu_criteria import GpuCriteria
from gpu_scheduler.core.scheduling.gpu_choice import (
    Impossibility,
    Ineligibility,
    choose,
    impossibility,
    in_line,
)
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_client import LateAnswerError
from gpu_scheduler.gpus.selection import restrict_to_visible
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.runner.gpu_lock import Refusal, Wanted, claim_gpus
from gpu_scheduler.system.shortages import reraise_shortage

#: Number of times that a claim is tried at once if other programs, which do not take turns, are faster.
_MAX_CLAIMS = 20
#: For this many seconds after claims have changed, the GPUs are sampled at this interval in seconds, because
#: drivers free the memory of an ended process with a delay.
_FREQUENT_S, _FREQUENT_EVERY_S = 10.0, 1.0
#: The least number of seconds that each sample may take, whatever the time limit.
_LEAST_SAMPLE_S = 2.0


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs that a command needs, and how to wait for them.

    poll_s: seconds between two samples of the GPUs; timeout_s: seconds after which to give up, None means
    never; claim: whether this process claims the GPUs.
    """

    criteria: GpuCriteria
    poll_s: float = 5.0
    timeout_s: float | None = None
    claim: bool = True


@dataclass(frozen=True)
class FoundGpus:
    """GPUs that meet the criteria, by index.

    is_inside: whether they belong to the job or process that started this process, so no claim was taken.
    surrounding: the claims of that job or process on these GPUs, by UUID.
    """

    gpus: tuple[ClaimedGpu, ...]
    criteria: GpuCriteria
    is_inside: bool = False
    surrounding: Mapping[str, GpuClaim] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedOut:
    """Not enough GPUs met the criteria in time."""

    seconds: float


@dataclass(frozen=True)
class Impossible:
    """The reason why a request can never be met.

    reason: None if CUDA_VISIBLE_DEVICES allows no GPU. visible_note: which GPUs CUDA_VISIBLE_DEVICES allows;
    None if it allows all.
    """

    reason: Impossibility | None
    visible_note: str | None = None


@dataclass(frozen=True)
class Shortfall:
    """The reasons why too few GPUs are eligible now. visible_note: as in Impossible.

    turn_problem: why there are no turns on some GPU, as a sentence about its turn file; "" if there are.
    """

    reasons: tuple[Ineligibility, ...]
    visible_note: str | None = None
    turn_problem: str = ""


#: The reasons why GPUs are not eligible, or why they cannot be read.
WaitReasons = Shortfall | GpuStateError
OnWait = Callable[[WaitReasons], None]


def find_gpus(source: GpuSource, request: GpuRequest, on_wait: OnWait) -> FoundGpus | Impossible | TimedOut:
    """Waits for GPUs that meet the criteria, and claims them if the request says so.

    This process then holds the claims until it ends, also if it executes another program; it must not open a
    lock file again. Raises GpuStateError if the first sample fails, and UsageError if the lock folder cannot
    be used.
    """
    end = None if request.timeout_s is None else time.monotonic() + request.timeout_s
    search = _Search(source, request, on_wait)
    try:
        first = search.begin()
    except LateAnswerError as error:
        on_wait(error)
        return TimedOut(request.timeout_s or 0.0)
    never = search.impossibility(first)
    if never is not None:
        return never
    samples: Sequence[GpuSample] | None = first
    while True:
        found = None if samples is None else search.choose_and_claim(samples)
        if found is not None:
            return found
        if end is not None and time.monotonic() >= end:
            return TimedOut(request.timeout_s or 0.0)
        samples = search.wait_and_sample(end)


class _Search:
    """The search for GPUs of one command."""

    def __init__(self, source: GpuSource, request: GpuRequest, on_wait: OnWait) -> None:
        self._probe, self._request, self._on_wait = source.probe, request, on_wait
        folder = claim_folder(source)
        if request.claim:
            folder.prepare()
        else:
            folder.check()
        self._folder = folder.path
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._visible_note: str | None = None
        self._watch = ClaimWatch(self._folder)
        self._frequent_until = 0.0
        #: The GPUs, by UUID, that another `run` above this process has claimed entirely.
        self._own: set[str] = set()
        self._is_inside = False

    def begin(self) -> tuple[GpuSample, ...]:
        """Takes the first sample and determines the GPUs that this process may use. Returns the sample."""
        timeout_s = self._request.timeout_s
        samples = self._probe.sample(None if timeout_s is None else max(_LEAST_SAMPLE_S, timeout_s)).gpus
        # The variable alone proves nothing: somebody may have copied the environment of a job.
        is_in_job = TOKEN in os.environ and is_below_runner()
        # A job uses all GPUs that are visible to it, whatever its runner claims.
        self._own = set() if is_in_job else own_claims(self._watch.read(uuids_of(samples)).locks)
        self._is_inside = is_in_job or bool(self._own)
        return samples

    def in_scope(self, samples: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
        """Returns the GPUs that this process may use."""
        visible, self._visible_note = restrict_to_visible(samples, self._visible)
        return tuple(sample for sample in visible if sample.uuid in self._own) if self._own else visible

    def impossibility(self, samples: Sequence[GpuSample]) -> Impossible | None:
        """Returns why the request can never be met; None if it can."""
        scope = self.in_scope(samples)
        if not scope and self._visible_note is not None:
            return Impossible(None, self._visible_note)
        reason = impossibility(scope, self._request.criteria)
        return None if reason is None else Impossible(reason, self._visible_note)

    def choose_and_claim(self, samples: Sequence[GpuSample]) -> FoundGpus | None:
        """Chooses GPUs and claims them; if they are refused, tries the next best ones.

        Returns None, after reporting the reasons, if too few GPUs are eligible.
        """
        samples, criteria = self.in_scope(samples), self._request.criteria
        own = {sample.uuid for sample in samples} if self._is_inside else ()
        unusable: dict[str, str] = {}
        for _ in range(_MAX_CLAIMS):
            reading = self._watch.read(uuids_of(samples))
            reading = LockReading(reading.locks, {**reading.problems, **unusable})
            gpus = with_claims(samples, reading, own)
            choice = choose(gpus if self._is_inside else self._in_turn(gpus), criteria)
            if len(choice.eligible) < criteria.count:
                break
            chosen = sorted(choice.eligible[: criteria.count], key=lambda gpu: gpu.sample.index)
            if self._is_inside:
                surrounding = surrounding_claims([gpu.sample for gpu in chosen], reading)
                return FoundGpus(tuple(chosen), criteria, is_inside=True, surrounding=surrounding)
            if not self._request.claim or self._claim(chosen, unusable):
                self._watch.turns.close()
                return FoundGpus(tuple(chosen), criteria)
        problem = self._watch.turns.problem
        turn_problem = "" if problem is None else lock_problem(problem)
        self._on_wait(Shortfall(choice.ineligible, self._visible_note, turn_problem))
        return None

    def _in_turn(self, gpus: Sequence[ClaimedGpu]) -> list[ClaimedGpu]:
        """Takes the places of this command in line; returns the GPUs with the turns of others as claims."""
        watch = self._watch
        if self._request.claim:
            held = [_kept_for(gpu, watch.turns.ahead(gpu.sample.uuid)) for gpu in gpus]
            line = {gpu.sample.uuid: gpu for gpu in in_line(held, self._request.criteria)}
            moving = {uuid for uuid, gpu in line.items() if gpu.claims or uuid in watch.ahead}
            # Once a GPU is free, the command keeps its place for a moment, until its memory is free, too.
            kept = watch.turns.places.keys() if self._request.criteria.count == 1 else ()
            watch.turns.wait_in_line(dict.fromkeys({*line, *kept}, watch.since), moving)
        ahead = watch.read_turns()
        return [_kept_for(gpu, ahead.get(gpu.sample.uuid)) for gpu in gpus]

    def _claim(self, chosen: Sequence[ClaimedGpu], unusable: dict[str, str]) -> bool:
        """Claims the GPUs if it is the turn of this process, which alone claims them at this moment.

        Returns whether it now holds them. Records unusable lock files.
        """
        turns = self._watch.turns
        uuids = sorted(gpu.sample.uuid for gpu in chosen)
        try:
            is_turn = all(turns.take(uuid, self._watch.since) is None for uuid in uuids)
            return is_turn and self._claim_memory(chosen, unusable)
        finally:
            turns.keep(())

    def _claim_memory(self, chosen: Sequence[ClaimedGpu], unusable: dict[str, str]) -> bool:
        mib = self._request.criteria.claim_mib
        samples = [gpu.sample for gpu in chosen]
        wanted = [Wanted(one.uuid, None if one.exclusive else mib, one.total_mib) for one in samples]
        try:
            return not isinstance(claim_gpus(str(self._folder), wanted, inheritable=True), Refusal)
        except OSError as error:
            reraise_shortage(error)
            name = os.path.basename(error.filename or "")
            if name not in {one.name for one in wanted}:
                raise
            unusable[name] = lock_problem(error)
            return False

    def wait_and_sample(self, end: float | None) -> tuple[GpuSample, ...] | None:
        """Waits until a sample is due or the claims have changed, and takes a sample.

        end: the time of the last sample; None means that there is no last one. Returns None, after reporting
        the reason, if the sample fails.
        """
        now = time.monotonic()
        wait_s = self._request.poll_s
        if now < self._frequent_until:
            wait_s = min(wait_s, _FREQUENT_EVERY_S)
        if self._watch.wait(wait_s if end is None else min(wait_s, end - now)):
            self._frequent_until = time.monotonic() + _FREQUENT_S
        try:
            left_s = None if end is None else max(_LEAST_SAMPLE_S, end - time.monotonic())
            return self._probe.sample(left_s).gpus
        except GpuStateError as error:
            self._on_wait(error)
            return None


def _kept_for(gpu: ClaimedGpu, pid: int | None) -> ClaimedGpu:
    """Returns a GPU with the turn of this process, unless there is none or the whole GPU is claimed."""
    is_claimed = any(claim.mib is None for claim in gpu.claims)
    return gpu if pid is None or is_claimed else replace(gpu, claims=(*gpu.claims, turn_claim(pid)))
