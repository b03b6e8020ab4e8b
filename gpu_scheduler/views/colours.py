"""Defines the colours of states and outcomes on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.core.model.states import JobState, Outcome

#: ANSI codes (SGR) for colours that the terminal's settings define.
RED, GREEN, YELLOW, CYAN, FAINT, BOLD = "31", "32", "33", "36", "2", "1"

OF_STATE = {
    JobState.RUNNING.value: CYAN,
    JobState.STARTING.value: CYAN,
    JobState.STOPPING.value: YELLOW,
    JobState.HELD.value: YELLOW,
}
OF_OUTCOME = {
    Outcome.COMPLETED.value: GREEN,
    Outcome.ENDED.value: GREEN,
    Outcome.CANCELLED.value: YELLOW,
    Outcome.SKIPPED.value: YELLOW,
}


def are_enabled(environ: Mapping[str, str]) -> bool:
    """Returns whether these environment variables allow colours."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """Returns the text in a colour; the unchanged text if the colour is ""."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text


def of_outcome(outcome: str) -> str:
    """Returns the colour of an outcome: red unless `OF_OUTCOME` has another one."""
    return OF_OUTCOME.get(outcome, RED)
