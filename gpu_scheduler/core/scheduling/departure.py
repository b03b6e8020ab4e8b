"""Decides whether an attempt that is ending frees its GPUs soon, so that a waiting job may count on them."""

from __future__ import annotations

import math

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Attempt, Facts
from gpu_scheduler.core.scheduling.reconcile_attempt import RUNNER_OVERTIME_S
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.core.scheduling.sweep_timing import sweep_grace_s

#: Seconds after its grace period from which an attempt that has not ended may never end.
OVERTIME_S = RUNNER_OVERTIME_S + 5.0


def leaving_attempts(facts: Facts) -> frozenset[int]:
    """Returns the ids of the attempts that free their GPUs soon.

    These are the ones that end within the longest of the scheduler's own grace periods. One that the user
    gave more time is not waited for, and one that outlives SIGKILL may remain for ever.
    """
    soon_s = max(facts.settings.grace_s, facts.settings.preempt_grace_s)

    def is_leaving(attempt: Attempt) -> bool:
        left_s = departure_s(attempt, facts.now, facts.settings)
        return attempt.state is AttemptState.RELEASED or (left_s is not None and left_s <= soon_s)

    return frozenset(one.attempt_id for one in facts.attempts if is_leaving(one))


def departure_s(attempt: Attempt, now: Now, settings: Settings) -> float | None:
    """Returns the seconds in which an attempt that is ending frees its GPUs; None if it is not ending.

    Infinite if it may remain for ever.
    """
    stop = attempt.open_stop or attempt.status.stop
    if attempt.state is AttemptState.RELEASED:
        since, grace_s = attempt.released_at, settings.memory_release_s
        return grace_s if since is None else max(0.0, grace_s - (now.boot - since))
    if attempt.state.is_open and attempt.status.claim == "unlocked":
        return None  # the loop leaves it alone, even if it must stop
    if attempt.state in (AttemptState.ENDED, AttemptState.ORPHANED):
        since, grace_s = attempt.swept_at, sweep_grace_s(attempt, settings)
    elif stop is not None and stop.on_timeout == "kill":
        since, grace_s = attempt.stopping_at, stop.grace_s
    else:
        return None
    left_s = grace_s if since is None else grace_s - (now.boot - since)
    return max(0.0, left_s) if left_s > -OVERTIME_S else math.inf
