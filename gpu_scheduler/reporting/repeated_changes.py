"""Keeps the log short when the end or the retry of one job changes the state of thousands of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.views.event_messages import more_changes_text

#: Maximum number of lines for the jobs that one report says were skipped, and for those queued again.
MAX_LINES = 20
_DERIVED = (ReasonKind.PARENT_FAILED, ReasonKind.PARENT_RETRIED)


class RepeatedChanges:
    """Counts the changes of jobs that follow from the states of their parents, in one report."""

    def __init__(self) -> None:
        self._counts: Counter[ReasonKind] = Counter()

    def add(self, event: Event) -> bool:
        """Returns whether an event gets no line of its own, because the report has many lines like it."""
        if not isinstance(event.reason, StateReason) or event.reason.kind not in _DERIVED:
            return False
        self._counts[event.reason.kind] += 1
        return self._counts[event.reason.kind] > MAX_LINES

    def summaries(self) -> Iterator[str]:
        """Yields a text for the events without a line."""
        for kind, count in self._counts.items():
            if count > MAX_LINES:
                yield more_changes_text(kind, count - MAX_LINES)
