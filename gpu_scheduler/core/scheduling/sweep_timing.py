"""Decides when an attempt's processes get SIGTERM and, after the grace period, SIGKILL."""

from __future__ import annotations

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.actions import Action, Sweep
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.scheduling.settings import Settings

#: Seconds between two signals to processes that do not exit.
SIGNAL_INTERVAL_S = 1.0


def was_sent_sigkill(attempt: Attempt, now: Now) -> bool:
    """Returns whether a sweep has sent SIGKILL and the processes have had time to exit.

    This must be checked because the grace period may exceed the wait for survivors, and because the scheduler
    may not have run in the meantime.
    """
    swept_at, signalled_at = attempt.swept_at, attempt.signalled_at
    killed = swept_at is not None and signalled_at is not None and signalled_at > swept_at
    return killed and may_signal(attempt, now)


def sweep(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Returns the next signal to the processes of an attempt, if one is due."""
    if attempt.swept_at is None:
        return [Sweep(attempt.attempt_id, kill=False)]
    if now.boot - attempt.swept_at < sweep_grace_s(attempt, settings) or not may_signal(attempt, now):
        return []
    return [Sweep(attempt.attempt_id, kill=True)]


def sweep_grace_s(attempt: Attempt, settings: Settings) -> float:
    """Returns the seconds between SIGTERM and SIGKILL for the processes of an attempt."""
    return settings.grace_s if attempt.stop_request is None else attempt.stop_request.grace_s


def may_signal(attempt: Attempt, now: Now) -> bool:
    """Returns whether enough time has passed since the last signal to the attempt."""
    # A time in the future was recorded before the machine restarted.
    return attempt.signalled_at is None or not 0 <= now.boot - attempt.signalled_at < SIGNAL_INTERVAL_S
