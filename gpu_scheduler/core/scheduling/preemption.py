"""Chooses the running attempts whose places a job of higher priority takes (docs/design.md, Preemption).

The choice touches the least important priorities, then the fewest attempts, then those that lose the least
work. Nobody is chosen if that would not let the job start, or if the job fits as soon as attempts that are
ending anyway have left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.vacancy import Vacancy
from gpu_scheduler.core.scheduling.victim_search import Candidate, find_victims

_NOTHING_PLACED: Mapping[str, Sequence[Need]] = {}


@dataclass(frozen=True)
class Preemption:
    """The ids of the attempts to preempt, and the UUIDs of the GPUs that the job then gets, by index."""

    victims: tuple[int, ...]
    gpus: tuple[str, ...]


def choose_victims(
    need: Need,
    allowed: tuple[int, ...] | None,
    candidates: Sequence[Candidate],
    leaving: Collection[int],
    facts: Facts,
    placed: Mapping[str, Sequence[Need]] = _NOTHING_PLACED,
) -> Preemption | None:
    """Returns which attempts to preempt so that a job with this need can start, or None.

    candidates: the attempts that may be preempted for the job. leaving: the ids of the attempts that are
    ending without it, and whose places the job therefore gets at no cost. placed: for each GPU, by UUID, the
    needs of the jobs to which the round has already given a part of it.
    """
    managed = [gpu for gpu in facts.gpus if allowed is None or gpu.index in allowed]
    vacancies = [Vacancy(gpu, facts, placed.get(gpu.uuid, ())) for gpu in managed]

    def accepting(victims: Collection[Candidate]) -> list[Vacancy]:
        gone = {*leaving, *(one.attempt_id for one in victims)}
        return [gpu for gpu in vacancies if gpu.accepts(need, gone)]

    if len(accepting(())) >= need.count or len(accepting(candidates)) < need.count:
        return None
    # The more priorities may be touched, the more GPUs accept the job.
    priorities = sorted({one.priority for one in candidates}, reverse=True)
    allowing = [[one for one in candidates if one.priority >= lowest] for lowest in priorities]
    first = bisect_left(allowing, need.count, key=lambda victims: len(accepting(victims)))
    victims = find_victims(need, accepting(allowing[first]), allowing[first], frozenset(leaving))
    views = [gpu.without(victims | frozenset(leaving)) for gpu in vacancies]
    gpus = place(need, allowed, views, facts.settings)
    return Preemption(tuple(sorted(victims)), gpus) if isinstance(gpus, tuple) else None
