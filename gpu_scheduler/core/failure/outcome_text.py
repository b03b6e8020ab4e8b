"""Formats how a job or an attempt ended."""

from __future__ import annotations

from gpu_scheduler.core.failure.explanation import signal_name
from gpu_scheduler.core.model.states import Outcome


def outcome_text(outcome: str, exit_code: int | None, signal: int | None) -> str:
    """Formats the outcome of a job: "completed", "failed, exit code 7", "failed, SIGKILL", "timed out"."""
    words = outcome.replace("_", " ")
    if outcome != Outcome.FAILED.value:
        return words
    if signal is not None:
        return f"{words}, {signal_name(signal)}"
    return words if exit_code is None else f"{words}, exit code {exit_code}"


def end_reason(reason: str | None, exit_code: int | None, signal: int | None) -> str:
    """Returns the reason of an end without the exit code or signal, which `outcome_text` already names."""
    known = f"exit code {exit_code}" if signal is None else f"killed by {signal_name(signal)}"
    return "" if reason is None or reason == known else reason.removeprefix(f"{known}: ")
