"""Searches for the cheapest set of attempts without which enough GPUs accept a job.

The search is exact as long as it needs at most MAX_TRIALS trials and MAX_STEPS steps, which suffices for 8
GPUs with five attempts each. Beyond that, it returns a good set, from which no attempt can be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.scheduling.vacancy import Occupancy, Vacancy

#: Greatest number of trials, each of which tests whether one GPU accepts the job without certain attempts.
MAX_TRIALS = 800
#: Greatest number of steps in which sets for single GPUs are combined.
MAX_STEPS = 4000


@dataclass(frozen=True)
class Candidate:
    """An attempt that may be preempted.

    priority: that of its job, lower numbers first. lost_work_s: seconds of work that it would lose.
    """

    attempt_id: int
    priority: int
    lost_work_s: float


#: The cost of a set of victims: their number, then the work that they lose, in seconds. Of two equal sets,
#: that with the newer attempts costs less.
_Cost = tuple[int, float, int]


def find_victims(
    need: Need, gpus: Sequence[Vacancy], candidates: Sequence[Candidate], leaving: frozenset[int]
) -> frozenset[int]:
    """Returns the ids of the fewest candidates, with the least lost work, without which the job can start.

    gpus: those that accept the job once all candidates have left; there are enough of them.
    """
    search = _Search(need, candidates, leaving, gpus)
    options = sorted((search.options(gpu) for gpu in gpus), key=lambda found: search.cost(found[0]))
    victims = search.combine(options, need.count)
    return victims if search.is_exact else _without_spare_ones(search, gpus, need.count, victims)


def _without_spare_ones(
    search: _Search, gpus: Sequence[Vacancy], count: int, victims: frozenset[int]
) -> frozenset[int]:
    """Returns the victims except those that need not leave, the most expensive first."""
    accepting = [gpu for gpu in gpus if search.accepts(gpu, victims)]
    for one in sorted(victims, key=lambda victim: search.cost([victim]), reverse=True):
        fewer = victims - {one}
        still = [gpu for gpu in accepting if one not in gpu.occupancies or search.accepts(gpu, fewer)]
        if len(still) >= count:
            accepting, victims = still, fewer
    return victims


class _Search:
    """One search. All GPUs share its budget of trials."""

    def __init__(
        self, need: Need, candidates: Sequence[Candidate], leaving: frozenset[int], gpus: Sequence[Vacancy]
    ) -> None:
        self._need = need
        self._leaving = leaving
        self._lost = {one.attempt_id: one.lost_work_s for one in candidates}
        self._gpus_of = {one: sum(one in gpu.occupancies for gpu in gpus) for one in self._lost}
        self._trials_left = MAX_TRIALS
        self._steps_left = MAX_STEPS
        self.is_exact = True

    def cost(self, victims: Collection[int]) -> _Cost:
        """Returns the cost of a set of victims."""
        return len(victims), sum(self._lost[one] for one in victims), -sum(victims)

    def options(self, gpu: Vacancy) -> list[frozenset[int]]:
        """Returns sets of victims, one of which an optimal choice contains if it frees this GPU.

        Victims that occupy other GPUs too may be needed there anyway. For each set of these, the cheapest
        addition of other victims is an option. The cheapest option comes first.
        """
        here = sorted(
            (one for one in self._lost if one in gpu.occupancies), key=lambda one: (self._lost[one], -one)
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

    def _addition(self, gpu: Vacancy, first: Sequence[int], others: Sequence[int]) -> Sequence[int]:
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

    def _good_addition(self, gpu: Vacancy, first: Sequence[int], others: Sequence[int]) -> Sequence[int]:
        """Returns few of the others, the largest first, from which none can be left out."""
        ranked = sorted(others, key=lambda one: (-self._size(gpu.occupancies[one]), self._lost[one]))
        low, high = 0, len(ranked)
        while low < high:
            middle = (low + high) // 2
            if self.accepts(gpu, {*first, *ranked[:middle]}):
                high = middle
            else:
                low = middle + 1
        chosen = ranked[:low]
        for one in sorted(chosen, key=self._lost.__getitem__, reverse=True):
            if self.accepts(gpu, {*first, *chosen} - {one}):
                chosen.remove(one)
        return chosen

    def _size(self, occupancy: Occupancy) -> int:
        """Returns how much of what the job needs becomes free with an attempt."""
        if self._need.vram is None or self._need.whole:
            return occupancy.share
        return max(occupancy.allocated_mib, occupancy.used_mib)

    def accepts(self, gpu: Vacancy, victims: Collection[int]) -> bool:
        """Returns whether a GPU accepts the job once these victims have left it."""
        self._trials_left -= 1
        return gpu.accepts(self._need, self._leaving.union(victims))

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
