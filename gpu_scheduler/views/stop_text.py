"""Formats why an attempt is being stopped, and what follows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.states import JobState

if TYPE_CHECKING:
    from gpu_scheduler.core.model.attempt_status import StopRequest


def stop_cause_text(cause: str, preemptor: int | None) -> str:
    """Formats why a job is being stopped, as a phrase that follows its name and "is"."""
    if cause == "timed_out":
        return "being stopped at its time limit"
    purpose = "" if preemptor is None else f" for job {preemptor}"
    return f"being {cause}{purpose}" if cause in ("cancelled", "preempted") else "being stopped"


def stop_text(stop: StopRequest, left_s: float | None) -> str:
    """Formats a request to stop a job. left_s: the seconds left of the grace period; None if unknown."""
    if left_s is None:
        when = f" {stop.grace_s:g} s after the signal"
    else:
        when = f" in {math.ceil(left_s)} s" if left_s > 0 else " now"
    then = "gets SIGKILL" if stop.on_timeout == "kill" else "continues if it has not ended"
    parts = [stop_cause_text(stop.cause, stop.preemptor), f"{then}{when}"]
    if stop.cause == "preempted":
        parts.append("then queued again" if stop.next_state is JobState.QUEUED else "held if it ends")
    return "; ".join(parts)
