"""Formats how a job or an attempt ended."""

from __future__ import annotations

from signal import Signals

from gpu_scheduler.core.model.states import Outcome


def outcome_text(outcome: str, exit_code: int | None, signal: int | None) -> str:
    """Formats the outcome of a job: "completed", "failed, exit code 7", "failed, SIGKILL", "timed out"."""
    words = outcome.replace("_", " ")
    if outcome != Outcome.FAILED.value:
        return words
    if signal is not None:
        return f"{words}, {signal_name(signal)}"
    return words if exit_code is None else f"{words}, exit code {exit_code}"


def signal_name(number: int) -> str:
    """Returns the name of a signal: "SIGKILL" for 9, "signal 40" for one without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
