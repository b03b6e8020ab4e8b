"""The colours in which states and outcomes are written on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.core.states import JobState, Outcome

#: The terminal's own colours, by their codes.
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


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether a terminal with these variables is to show colours."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def painted(text: str, colour: str) -> str:
    """The text in a colour; "": as it is."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text


def of_outcome(outcome: str) -> str:
    """The colour of an outcome; red for one that is no success."""
    return OF_OUTCOME.get(outcome, RED)
