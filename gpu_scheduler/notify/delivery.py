"""Decides which events a receiver gets, which share a message, and when a failed delivery is repeated.

It neither sends anything nor reads a clock; times are arguments, in wall seconds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.event import AttemptEnded, Event, EventKind, JobEnded
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.text.formatting import count_noun, format_duration, limit_length, safe_text
from gpu_scheduler.show.job_text import reason_text

#: More than this many ends within the window become one message.
_MOST_SINGLE, _WINDOW_S = 5, 30.0
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 1.0, 600.0
#: A message that a receiver has not accepted for this long is skipped.
GIVE_UP_S = 86400.0


def is_wanted(event: Event, outcomes: Set[str], pattern: str | None) -> bool:
    """Returns whether an event is the final end of a job that the receiver wants.

    outcomes: "completed" and "failed"; every end that is neither completed nor cancelled has failed. pattern:
    a glob for the name of the job.
    """
    details = event.details
    if event.kind != EventKind.FINISHED or not isinstance(details, (AttemptEnded, JobEnded)):
        return False
    if details.outcome == "cancelled":
        return False
    if ("completed" if details.outcome == "completed" else "failed") not in outcomes:
        return False
    return pattern is None or fnmatchcase(event.name or "", pattern)


def next_message(ends: Sequence[Event]) -> Sequence[Event]:
    """Returns the first of the ends that share a message: one, or all of a burst.

    A burst is more than five ends within 30 s.
    """
    later = (index for index, end in enumerate(ends) if end.at - ends[0].at > _WINDOW_S)
    near = ends[: next(later, len(ends))]
    return near if len(near) > _MOST_SINGLE else near[:1]


def message_text(ends: Sequence[Event]) -> tuple[str, str]:
    """Returns the title and the body of a message about one or more ends, with secrets hidden.

    Each line ends with the id of its event, because a message may be delivered twice.
    """
    lines = [_line(end) for end in ends]
    title = f"{count_noun(len(ends), 'job')} ended" if len(ends) > 1 else _head(ends[0])
    return safe_text(title), "\n".join(lines)


def _head(end: Event) -> str:
    name = f" ({end.name})" if end.name else ""
    return f"job {end.job_id}{name}: {str(end.data['outcome']).replace('_', ' ')}"


def _line(end: Event) -> str:
    details, reason = end.details, end.reason
    text = _head(end)
    if isinstance(details, AttemptEnded) and details.seconds is not None:
        text += f" after {format_duration(details.seconds)}"
    why = reason_text(reason) if isinstance(reason, StateReason) else str(reason or "")
    return f"{safe_text(limit_length(text + f': {why}' * bool(why)))} [event {end.id}]"


class Retry(Struct, frozen=True):
    """The failures of one message. since: when the first one happened; None if there was none."""

    since: float | None = None
    due_at: float = 0.0
    wait_s: float = 0.0

    def failed(self, now: float) -> Retry:
        """Returns the state after another failure: the wait doubles from 1 s to 10 min."""
        wait_s = min(max(_SHORTEST_WAIT_S, 2 * self.wait_s), _LONGEST_WAIT_S)
        since = now if self.since is None else self.since
        return replace(self, since=since, due_at=now + wait_s, wait_s=wait_s)

    def is_hopeless(self, now: float) -> bool:
        """Returns whether the message is to be skipped."""
        return self.since is not None and now - self.since >= GIVE_UP_S
