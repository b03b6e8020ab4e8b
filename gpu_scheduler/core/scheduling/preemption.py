"""Decides which running jobs a queued job of higher priority preempts (docs/design.md, Preemption).

The choice touches the least important priorities, then the fewest attempts, then those that lose the least
work. Nobody is chosen if that would not let the job start, or if the job fits as soon as attempts that are
ending anyway have left.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.model.attempt_status import StopRequest
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.states import AttemptState, JobState
from gpu_scheduler.core.scheduling.actions import Action, RecordStop, Reserve
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.settings import Limits, Settings
from gpu_scheduler.core.scheduling.vacancy import Vacancy
from gpu_scheduler.core.scheduling.victim_search import Candidate, find_victims

#: Seconds for which a job that follows its own preemption is not preempted again.
PROTECTION_S = 60.0


@dataclass(frozen=True)
class Preemption:
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
    gpus: Sequence[Vacancy],
) -> Preemption | NoPreemption:
    """Returns which attempts a waiting job preempts, or why none. leaving, gpus: see `choose_victims`."""
    holders = [one for one in facts.attempts if one.gpus and one.state.holds_gpus]
    lower = [one for one in holders if one.priority > job.priority]
    candidates = [
        Candidate(attempt.attempt_id, attempt.priority, _lost_work_s(attempt, facts.now))
        for attempt in lower
        if _may_be_preempted(attempt, facts.now)
    ]
    if not candidates:
        return NoPreemption.SPARED if lower else NoPreemption.NO_LOWER_PRIORITY
    return choose_victims(need, allowed, candidates, leaving, gpus, facts.settings)


def preempt(job_id: int, preemption: Preemption, facts: Facts) -> list[Action]:
    """Returns the actions that reserve the GPUs for a job and preempt its victims."""
    grace_s = facts.settings.preempt_grace_s
    stops = [
        RecordStop(
            attempt.job_id,
            StopRequest(
                "preempted", grace_s, "kill", f"for job {job_id}", attempt.preempt_signal,
                JobState.QUEUED, job_id,
            ),
        )
        for attempt in facts.attempts
        if attempt.attempt_id in preemption.victims
    ]  # fmt: skip
    return [Reserve(job_id, preemption.gpus, preemption.victims), *stops]


def _may_be_preempted(attempt: Attempt, now: Now) -> bool:
    """Returns whether an attempt runs normally, belongs to us, and has not just followed a preemption.

    A runner that cannot be reached is left alone, because it could not be stopped.
    """
    status = attempt.status
    runs = attempt.state is AttemptState.RUNNING and status.claim in ("live", "unclaimed")
    stops = attempt.stop_request is not None or status.stop is not None or status.result is not None
    if not runs or stops or attempt.watched_pid is not None:
        return False
    return protection_left_s(attempt, now) == 0.0


def protection_left_s(attempt: Attempt, now: Now) -> float:
    """Returns the seconds for which an attempt is not preempted, because it follows a preemption."""
    if attempt.started_at is None or not attempt.follows_preemption:
        return 0.0
    run_time_s = now.wall - attempt.started_at
    # A negative time means that the clock was set back, which must not protect a job for ever.
    return max(0.0, PROTECTION_S - run_time_s) if run_time_s >= 0 else 0.0


def _lost_work_s(attempt: Attempt, now: Now) -> float:
    """Returns the seconds since the attempt last saved its work or, if it has not, since its start."""
    if attempt.started_at is None:
        return math.inf
    return max(0.0, now.wall - max(attempt.started_at, attempt.saved_at or 0.0))


def choose_victims(
    need: Need,
    allowed: tuple[int, ...] | None,
    candidates: Sequence[Candidate],
    leaving: Collection[int],
    gpus: Sequence[Vacancy],
    limits: Limits,
) -> Preemption | NoPreemption:
    """Returns which attempts to preempt so that a job with this need can start, or why none.

    candidates: the attempts that may be preempted for the job. leaving: the ids of the attempts that are
    ending without it, and whose places the job therefore gets at no cost. gpus: all managed GPUs.
    """
    usable = [gpu for gpu in gpus if allowed is None or gpu.index in allowed]

    def accepting(victims: Iterable[Candidate]) -> list[Vacancy]:
        gone = {*leaving, *(one.attempt_id for one in victims)}
        return [gpu for gpu in usable if gpu.accepts(need, gone)]

    if len(accepting(())) >= need.count:
        return NoPreemption.ENDING_ANYWAY
    if len(accepting(candidates)) < need.count:
        return NoPreemption.NO_HELP
    # The more priorities may be touched, the more GPUs accept the job.
    priorities = sorted({one.priority for one in candidates}, reverse=True)
    allowing = [[one for one in candidates if one.priority >= lowest] for lowest in priorities]
    first = bisect_left(allowing, need.count, key=lambda victims: len(accepting(victims)))
    victims = find_victims(need, accepting(allowing[first]), allowing[first], frozenset(leaving))
    gone = victims | frozenset(leaving)
    views = [gpu.without(gone) for gpu in usable if gpu.accepts(need, gone)]
    uuids = place(need, allowed, views, limits)
    if not isinstance(uuids, tuple):
        return NoPreemption.NO_HELP
    return Preemption(tuple(sorted(victims)), uuids)
