"""An event of the journal, as stored and as every view presents it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One event.

    id: increases with every event; at: wall seconds; kind: the new state of a job, or another kind of event;
    job_id: 0 = not about a job; data: the details (docs/json.md).

    command: the line of the job; name: of the job; spec: of the job, as JSON; is_new_job: the event
    introduced the job.
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
    is_new_job: bool = False
