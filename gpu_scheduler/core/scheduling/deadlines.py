"""Determines when the next round must take place if no event triggers one earlier."""

from __future__ import annotations

from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.preemption import protection_left_s
from gpu_scheduler.core.scheduling.queue_placement import start_wait_s


def next_deadline(facts: Facts, next_retry: float | None) -> float | None:
    """Returns the next deadline in seconds since boot, or None if there is none.

    A deadline is a timeout, a retry, a repeated signal, the end of a protection against preemptions, or the
    next start that `--start-interval` allows.
    """
    times: list[float] = [] if next_retry is None else [next_retry]
    now, settings = facts.now.boot, facts.settings
    if facts.storage_issue is not None:
        times.append(now + 1.0)
    if start_wait_s(facts) and (facts.pending_groups or facts.reserved_jobs):
        times.append(now + start_wait_s(facts))
    for attempt in facts.attempts:
        if attempt.released_at is not None:
            times.append(attempt.released_at + settings.memory_release_s)
        elif attempt.state is AttemptState.ENDED or attempt.status.claim == "dead":
            times.append(now + _retry_delay(attempt.runner_died_at or attempt.swept_at, now))
        elif attempt.status.claim in ("none", "invalid"):
            # An overdue action that has not succeeded is tried again every second.
            waits = (
                facts.storage_issue is None and attempt.signalled_at is None and attempt.launch_deadline > now
            )
            times.append(attempt.launch_deadline if waits else now + 1.0)
        elif attempt.status.stop is not None or attempt.stop_request is not None:
            times.append(now + 1.0)
        elif protection_left_s(attempt, facts.now):
            times.append(now + protection_left_s(attempt, facts.now))
    return min(times, default=None)


def _retry_delay(since: float | None, now: float) -> float:
    """Returns a delay that grows to 1 s. It is short at first, because processes may be about to end."""
    age = 0.0 if since is None else now - since
    return min(1.0, max(0.005, age / 2))
