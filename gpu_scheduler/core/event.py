"""One thing that happened, as the record has it and every view tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """id: grows from event to event; at: wall seconds; kind: a state that a job came to, or what else
    happened; job_id: 0 = it is about no job; data: what is known of it (docs/json.md).

    command: the job's line; name, spec: its own, the spec as JSON; new: the job came in with this event.
    """

    id: int
    at: float
    kind: str
    job_id: int = 0
    reason: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    name: str | None = None
    spec: str = "{}"
    new: bool = False
