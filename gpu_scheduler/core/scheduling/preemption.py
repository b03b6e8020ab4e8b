"""Decides which running jobs a queued job of higher priority preempts (docs/design.md, Preemption).

The choice touches the least important priorities, then the fewest attempts, then those that lose the least
work. Nobody is chosen if that would not let the job start, or if the job fits as soon as attempts that are
ending anyway have left.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import combinations
from math import comb

from msgspec import Struct

from gpu_scheduler.core.model.job import ActiveAttempt, StopRequest
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import AttemptState, JobState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import Action, Reserve, stopped
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.placement import Holding, Ledger, place
from gpu_scheduler.core.scheduling.settings import Settings

# Searches for the cheapest set of attempts without which enough GPUs accept a job.
#
# The search is exact as long as it needs at most MAX_TRIALS trials and MAX_STEPS steps, which suffices for 8
# GPUs with five attempts each. Beyond that, it returns a good set, from which no attempt can be left out.


#: Greatest number of trials, each of which tests whether one GPU accepts the job without certain attempts.
MAX_TRIALS = 800
#: Greatest number of steps in which sets for single GPUs are combined.
MAX_STEPS = 4000


class Candidate(Struct, frozen=True):
    """An attempt that may be preempted.

    priority: that of its job, lower numbers first. lost_work_s: seconds of work that it would lose.
    """

    attempt_id: int
    priority: int
    lost_work_s: float


#: The cost of a set of victims: their number, then the work that they lose, in seconds. Of two equal sets,
#: that with the newer attempts costs less.
_Cost = tuple[int, float, int]


def find_victims(need: Need, gpus: Sequence[Ledger], candidates: Sequence[Candidate]) -> frozenset[int]:
    """Returns the ids of the fewest candidates, with the least lost work, without which the job can start.

    gpus: those that accept the job once all candidates have left; there are enough of them.
    """
    search = _VictimSearch(need, candidates, gpus)
    options = sorted((search.options(gpu) for gpu in gpus), key=lambda found: search.cost(found[0]))
    victims = search.combine(options, need.count)
    return victims if search.is_exact else _without_spare_ones(search, gpus, need.count, victims)


def _without_spare_ones(
    search: _VictimSearch, gpus: Sequence[Ledger], count: int, victims: frozenset[int]
) -> frozenset[int]:
    """Returns the victims except those that need not leave, the most expensive first."""
    accepting = [gpu for gpu in gpus if search.accepts(gpu, victims)]
    for one in sorted(victims, key=lambda victim: search.cost([victim]), reverse=True):
        fewer = victims - {one}
        still = [gpu for gpu in accepting if one not in gpu.holdings or search.accepts(gpu, fewer)]
        if len(still) >= count:
            accepting, victims = still, fewer
    return victims


class _VictimSearch:
    """One search. All GPUs share its budget of trials."""

    def __init__(self, need: Need, candidates: Sequence[Candidate], gpus: Sequence[Ledger]) -> None:
        self._need = need
        self._lost = {one.attempt_id: one.lost_work_s for one in candidates}
        self._gpus_of = {one: sum(one in gpu.holdings for gpu in gpus) for one in self._lost}
        self._trials_left = MAX_TRIALS
        self._steps_left = MAX_STEPS
        self.is_exact = True

    def cost(self, victims: Collection[int]) -> _Cost:
        """Returns the cost of a set of victims."""
        return len(victims), sum(self._lost[one] for one in victims), -sum(victims)

    def options(self, gpu: Ledger) -> list[frozenset[int]]:
        """Returns sets of victims, one of which an optimal choice contains if it frees this GPU.

        Victims that occupy other GPUs too may be needed there anyway. For each set of these, the cheapest
        addition of other victims is an option. The cheapest option comes first.
        """
        here = sorted(
            (one for one in self._lost if one in gpu.holdings), key=lambda one: (self._lost[one], -one)
        )
        # A job that needs the GPU for itself needs the places of all of them.
        needed = [one for one in here if self._need.whole or not self.accepts(gpu, set(here) - {one})]
        optional = [one for one in here if one not in needed]
        shared = [one for one in optional if self._gpus_of[one] > 1]
        private = [one for one in optional if self._gpus_of[one] == 1]
        options = []
        for with_shared in self._subsets(shared):
            first = (*needed, *with_shared)
            if self.accepts(gpu, {*first, *private}):
                options.append(frozenset((*first, *self._addition(gpu, first, private))))
        options.sort(key=self.cost)
        return options

    def _subsets(self, items: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yields all subsets, or only the whole set if the budget does not suffice for all."""
        if 2 ** len(items) > max(1, self._trials_left // 2):
            self.is_exact = False
            yield tuple(items)
            return
        for number in range(len(items) + 1):
            yield from combinations(items, number)

    def _addition(self, gpu: Ledger, first: Sequence[int], others: Sequence[int]) -> Sequence[int]:
        """Returns the cheapest of the others that must leave a GPU with these first ones."""
        for number in range(len(others) + 1):
            if comb(len(others), number) > self._trials_left:
                self.is_exact = False
                break
            fits = (some for some in combinations(others, number) if self.accepts(gpu, {*first, *some}))
            found = min(fits, key=self.cost, default=None)
            if found is not None:
                return found
        return self._good_addition(gpu, first, others)

    def _good_addition(self, gpu: Ledger, first: Sequence[int], others: Sequence[int]) -> Sequence[int]:
        """Returns few of the others, the largest first, from which none can be left out."""
        ranked = sorted(others, key=lambda one: (-self._size(gpu.holdings[one]), self._lost[one]))
        number = bisect_left(
            range(len(ranked)), True, key=lambda most: self.accepts(gpu, {*first, *ranked[:most]})
        )
        chosen = ranked[:number]
        for one in sorted(chosen, key=self._lost.__getitem__, reverse=True):
            if self.accepts(gpu, {*first, *chosen} - {one}):
                chosen.remove(one)
        return chosen

    def _size(self, holding: Holding) -> int:
        """Returns how much of what the job needs becomes free with an attempt."""
        if self._need.vram is None or self._need.whole:
            return holding.share
        return max(holding.allocated_mib, holding.used_mib)

    def accepts(self, gpu: Ledger, victims: Collection[int]) -> bool:
        """Returns whether a GPU accepts the job once these victims have left it."""
        self._trials_left -= 1
        return gpu.minus(victims).accepts(self._need)

    def combine(self, options: Sequence[Sequence[frozenset[int]]], count: int) -> frozenset[int]:
        """Returns the cheapest union of options of `count` GPUs. options: those of each GPU."""
        best: tuple[_Cost, frozenset[int]] | None = None

        def extend(at: int, missing: int, victims: frozenset[int]) -> None:
            nonlocal best
            self._steps_left -= 1
            if best is not None and self._steps_left < 0:
                self.is_exact = False
                return
            cost = self.cost(victims)
            if best is not None and cost >= best[0]:
                return
            if not missing:
                best = cost, victims
                return
            for gpu in range(at, len(options) - missing + 1):
                for option in options[gpu]:
                    extend(gpu + 1, missing - 1, victims | option)

        extend(0, count, frozenset())
        assert best is not None, "the caller gives enough GPUs that accept the job"
        return best[1]


#: Seconds for which a job that follows its own preemption is not preempted again.
PROTECTION_S = 60.0


class Preemption(Struct, frozen=True):
    """The ids of the attempts to preempt, and the UUIDs of the GPUs that the job then gets, by index."""

    victims: tuple[int, ...]
    gpus: tuple[str, ...]


class NoPreemption(str, Enum):
    """Why a waiting job that may preempt others preempts nobody."""

    NO_LOWER_PRIORITY = "no lower priority"
    #: Those of lower priority are stopping, adopted, out of reach, or follow a preemption.
    SPARED = "spared"
    #: The job fits as soon as attempts that are ending anyway have left.
    ENDING_ANYWAY = "ending anyway"
    NO_HELP = "no help"


def may_preempt(priority: int, resources: ResourceSpec, settings: Settings) -> bool:
    """Returns whether a job with this priority and these resources may preempt others."""
    limit = settings.preempt_at_priority
    return resources.preempt or (limit is not None and priority <= limit)


def find_preemption(
    job: QueuedJob,
    need: Need,
    allowed: tuple[int, ...] | None,
    facts: Facts,
    leaving: Collection[int],
    gpus: Sequence[Ledger],
) -> Preemption | NoPreemption:
    """Returns which attempts a waiting job preempts, or why none. leaving, gpus: see `choose_victims`."""
    holders = [one for one in facts.attempts if one.gpus and one.state.holds_gpus]
    lower = [one for one in holders if one.job.priority > job.priority]
    candidates = [
        Candidate(attempt.id, attempt.job.priority, _lost_work_s(attempt, facts.now))
        for attempt in lower
        if _may_be_preempted(attempt, facts.now)
    ]
    if not candidates:
        return NoPreemption.SPARED if lower else NoPreemption.NO_LOWER_PRIORITY
    return choose_victims(need, allowed, candidates, leaving, gpus)


def preempt(job_id: int, preemption: Preemption, facts: Facts) -> list[Action]:
    """Returns the actions that reserve the GPUs for a job and preempt its victims."""
    grace_s = facts.settings.preempt_grace_s
    stops = [
        stopped(
            attempt.job,
            StopRequest(
                "preempted", grace_s, "kill", f"for job {job_id}",
                attempt.job.preempt_signal,
                JobState.QUEUED, job_id,
            ),
        )
        for attempt in facts.attempts
        if attempt.id in preemption.victims
    ]  # fmt: skip
    return [Reserve(job_id, preemption.gpus, preemption.victims), *stops]


def _may_be_preempted(attempt: ActiveAttempt, now: Now) -> bool:
    """Returns whether an attempt runs normally, belongs to us, and has not just followed a preemption.

    A runner that cannot be reached is left alone, because it could not be stopped.
    """
    status = attempt.status
    runs = attempt.state is AttemptState.RUNNING and status.claim in ("live", "unclaimed")
    stops = attempt.stop_request is not None or status.stop is not None or status.result is not None
    if not runs or stops or attempt.watched_pid is not None:
        return False
    return protection_left_s(attempt, now) == 0.0


def protection_left_s(attempt: ActiveAttempt, now: Now) -> float:
    """Returns the seconds for which an attempt is not preempted, because it follows a preemption."""
    if attempt.started_at is None or not attempt.follows_preemption:
        return 0.0
    run_time_s = now.wall - attempt.started_at
    # A negative time means that the clock was set back, which must not protect a job for ever.
    return max(0.0, PROTECTION_S - run_time_s) if run_time_s >= 0 else 0.0


def _lost_work_s(attempt: ActiveAttempt, now: Now) -> float:
    """Returns the seconds since the attempt last saved its work or, if it has not, since its start."""
    if attempt.started_at is None:
        return math.inf
    return max(0.0, now.wall - max(attempt.started_at, attempt.observed.saved_at or 0.0))


def choose_victims(
    need: Need,
    allowed: tuple[int, ...] | None,
    candidates: Sequence[Candidate],
    leaving: Collection[int],
    gpus: Sequence[Ledger],
) -> Preemption | NoPreemption:
    """Returns which attempts to preempt so that a job with this need can start, or why none.

    candidates: the attempts that may be preempted for the job. leaving: the ids of the attempts that are
    ending without it, and whose places the job therefore gets at no cost. gpus: all managed GPUs.
    """
    usable = [gpu.minus(leaving) for gpu in gpus if allowed is None or gpu.index in allowed]

    def accepting(victims: Iterable[Candidate]) -> list[Ledger]:
        gone = {one.attempt_id for one in victims}
        return [gpu for gpu in usable if gpu.minus(gone).accepts(need)]

    if len(accepting(())) >= need.count:
        return NoPreemption.ENDING_ANYWAY
    if len(accepting(candidates)) < need.count:
        return NoPreemption.NO_HELP
    # The more priorities may be touched, the more GPUs accept the job.
    priorities = sorted({one.priority for one in candidates}, reverse=True)
    allowing = [[one for one in candidates if one.priority >= lowest] for lowest in priorities]
    first = bisect_left(allowing, need.count, key=lambda victims: len(accepting(victims)))
    victims = find_victims(need, accepting(allowing[first]), allowing[first])
    uuids = place(need, allowed, [gpu.minus(victims) for gpu in usable])
    if not isinstance(uuids, tuple):
        return NoPreemption.NO_HELP
    return Preemption(tuple(sorted(victims)), uuids)
