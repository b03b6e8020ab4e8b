"""Formats the lines that `start` prints on a terminal: time, mark, job with its title, and message.

The main log contains the same messages, with date and level and without truncation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from msgspec import Struct

from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind, JobEnded
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.show import tables
from gpu_scheduler.show.events import EventMessage
from gpu_scheduler.show.layout import (
    CYAN,
    FAINT,
    RED,
    YELLOW,
    coloured,
    display_width,
    of_outcome,
    truncate_end,
    truncate_middle,
    wrap_words,
)
from gpu_scheduler.show.tables import title_of

#: ASCII replacements for the symbols in messages, for terminals whose encoding lacks some of the symbols.
_ASCII = str.maketrans(
    {
        tables.RUNNING: ">", tables.WAITING: ".", tables.RETRY: "~", tables.SUCCESS: "+", tables.FAILURE: "x",
        "…": "...", "—": "-", "→": "->", "±": "+-",
    }
)  # fmt: skip
#: Maximum number of rows for a message about a job.
_MAX_ROWS = 3
#: Indent of each further row of a message.
_INDENT = 12
#: A job's title is not shortened below this width to make a message fit into one row.
_MIN_TITLE = 12
#: Maximum width of a job's title if the message needs more than one row.
_SHORT_TITLE = 24


class Terminal(Struct, frozen=True):
    """The terminal on which the lines are printed."""

    columns: int = 80
    colours: bool = False
    encoding: str = "utf-8"

    @property
    def text_width(self) -> int:
        """The number of columns that remain beside the time and the mark."""
        return max(20, self.columns - _INDENT)

    def can_encode(self, text: str) -> bool:
        """Returns whether the terminal's encoding contains all characters of a text."""
        try:
            text.encode(self.encoding)
        except (UnicodeError, LookupError):
            return False
        return True


def format_event(event: Event, message: EventMessage, at: float, terminal: Terminal) -> str:
    """Formats the lines of an event. at: seconds since 1970."""
    mark, colour = _mark(event, message.level)
    text = safe_text(message.text)
    subject = _subject(event, message, terminal.text_width - display_width(text)) if message.subject else ""
    first, *more = wrap_words(subject + text, terminal.text_width)
    if len(more) >= _MAX_ROWS:
        more[_MAX_ROWS - 2 :] = [truncate_end(" ".join(more[_MAX_ROWS - 2 :]), terminal.text_width)]
    end = len(subject) or len(first)
    return _render(at, mark, colour, [first[:end], first[end:]], more, terminal)


def format_message(level: int, text: str, at: float, terminal: Terminal) -> str:
    """Formats the lines of a message that is not about an event.

    Such a message may contain paths, so it is never truncated.
    """
    mark, colour = tables.NONE, ""
    if level >= logging.WARNING:
        mark, colour = tables.WARNING, RED if level >= logging.ERROR else YELLOW
    lines = safe_text(text, keep_line_breaks=True).split("\n")
    first, *more = [row for line in lines for row in wrap_words(line, terminal.text_width)]
    return _render(at, mark, colour, [first, ""], more, terminal)


def _subject(event: Event, message: EventMessage, room: int) -> str:
    """Returns the job and its title, truncated to fit `room` columns unless too little would remain."""
    room -= len(f"{message.subject} : ")
    title = title_of(event.name, event.command, event.spec)
    title = truncate_middle(title, room if room >= _MIN_TITLE else _SHORT_TITLE)
    return f"{message.subject} {title}: " if title else f"{message.subject}: "


def _render(
    at: float, mark: str, colour: str, first: Sequence[str], more: Sequence[str], terminal: Terminal
) -> str:
    """Renders the rows. first: the coloured part and the rest of the first row; more: the rows below it."""
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    if terminal.colours:
        clock, head = coloured(clock, FAINT), coloured(f"{mark} {first[0]}", colour)
    else:
        head = f"{mark} {first[0]}"
    text = "\n".join([f"{clock}  {head}{first[1]}", *(" " * _INDENT + row for row in more)])
    return text if terminal.can_encode(text) else text.translate(_ASCII)


def _mark(event: Event, level: int) -> tuple[str, str]:
    """Returns the mark of an event, and its colour."""
    outcome = event.details.outcome if isinstance(event.details, (AttemptEnded, JobEnded)) else None
    warning = YELLOW if level >= logging.WARNING else ""
    if event.kind == EventKind.STARTING:
        return tables.RUNNING, CYAN
    if outcome is not None and event.kind == EventKind.QUEUED:
        return tables.RETRY, YELLOW
    if outcome is not None:
        colour = of_outcome(outcome)
        mark = tables.outcome_mark(outcome)
        return mark, warning or colour if mark == tables.SUCCESS else colour
    if event.kind in (EventKind.QUEUED, EventKind.HELD, EventKind.INFEASIBLE):
        return tables.WAITING, warning
    return (tables.WARNING, warning) if warning else (tables.NONE, "")
