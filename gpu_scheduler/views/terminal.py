"""Formats the lines that `start` prints on a terminal: time, mark, job with its title, and message.

The main log has the same messages in full, with date and level.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.core.event import Event
from gpu_scheduler.core.states import WAITING, JobState
from gpu_scheduler.views.board import AGAIN_MARK, BAD_MARK, GOOD_MARK, RUNNING_MARK, WAITING_MARK
from gpu_scheduler.views.colours import CYAN, FAINT, GREEN, RED, YELLOW, of_outcome, painted
from gpu_scheduler.views.events import Told
from gpu_scheduler.views.titles import title_of
from gpu_scheduler.views.widths import columns_of, cut, cut_in_the_middle, rows
from gpu_scheduler.views.words import visible

WARNING_MARK, NO_MARK = "!", " "
#: ASCII replacements of our own symbols, for terminals whose encoding lacks some of them.
_ASCII = str.maketrans(
    {
        RUNNING_MARK: ">", WAITING_MARK: ".", AGAIN_MARK: "~", GOOD_MARK: "+", BAD_MARK: "x",
        "…": "...", "—": "-", "→": "->", "±": "+-",
    }
)  # fmt: skip
#: Maximum number of rows for a message about a job, and the indent of each continuation row.
_ROWS, _INDENT = 3, 12
#: Width of a job's title: the minimum, and the width used if the message needs more than one row anyway.
_LEAST_TITLE, _TITLE = 12, 24


@dataclass(frozen=True)
class Terminal:
    """The terminal that the lines are printed on."""

    columns: int = 80
    colours: bool = False
    encoding: str = "utf-8"

    @property
    def room(self) -> int:
        """Width available beside the time and the mark."""
        return max(20, self.columns - _INDENT)

    def can(self, text: str) -> bool:
        """Returns whether the terminal's encoding has all characters of a text."""
        try:
            text.encode(self.encoding)
        except (UnicodeError, LookupError):
            return False
        return True


def of_event(event: Event, told: Told, at: float, terminal: Terminal) -> str:
    """Formats the lines of an event. at: wall seconds."""
    mark, colour = _mark(event, told.level)
    text = visible(told.text)
    subject = _subject(event, told, terminal.room - columns_of(text)) if told.subject else ""
    first, *more = rows(subject + text, terminal.room)
    if len(more) >= _ROWS:
        more[_ROWS - 2 :] = [cut(" ".join(more[_ROWS - 2 :]), terminal.room)]
    end = len(subject) or len(first)
    return _printed(at, mark, colour, [first[:end], first[end:]], more, terminal)


def of_message(level: int, text: str, at: float, terminal: Terminal) -> str:
    """Formats the lines of a message that is not about an event; never truncated, as it may hold paths."""
    mark, colour = NO_MARK, ""
    if level >= logging.WARNING:
        mark, colour = WARNING_MARK, RED if level >= logging.ERROR else YELLOW
    lines = visible(text, lines=True).split("\n")
    first, *more = [row for line in lines for row in rows(line, terminal.room)]
    return _printed(at, mark, colour, [first, ""], more, terminal)


def _subject(event: Event, told: Told, room: int) -> str:
    """Returns the job with its title, truncated to fit `room` columns if that leaves enough of it."""
    room -= len(f"{told.subject} : ")
    title = title_of(event.name, event.command, event.spec)
    title = cut_in_the_middle(title, room if room >= _LEAST_TITLE else _TITLE)
    return f"{told.subject} {title}: " if title else f"{told.subject}: "


def _printed(
    at: float, mark: str, colour: str, first: Sequence[str], more: Sequence[str], terminal: Terminal
) -> str:
    """Renders the rows. first: the coloured part of the first row and its rest; more: the rows below."""
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    if terminal.colours:
        clock, head = painted(clock, FAINT), painted(f"{mark} {first[0]}", colour)
    else:
        head = f"{mark} {first[0]}"
    text = "\n".join([f"{clock}  {head}{first[1]}", *(" " * _INDENT + row for row in more)])
    return text if terminal.can(text) else text.translate(_ASCII)


def _mark(event: Event, level: int) -> tuple[str, str]:
    """Returns the mark of an event, and its colour."""
    outcome = event.data.get("outcome")
    warning = YELLOW if level >= logging.WARNING else ""
    if event.kind == JobState.STARTING:
        return RUNNING_MARK, CYAN
    if outcome is not None and event.kind == JobState.QUEUED:
        return AGAIN_MARK, YELLOW
    if outcome is not None:
        colour = of_outcome(outcome)
        return (GOOD_MARK, warning or colour) if colour == GREEN else (BAD_MARK, colour)
    if event.kind in WAITING or event.kind == "infeasible":
        return WAITING_MARK, warning
    return (WARNING_MARK, warning) if warning else (NO_MARK, "")
