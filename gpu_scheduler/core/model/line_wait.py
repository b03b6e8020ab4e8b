"""The reason why a waiting job is not started because of its line in the jobs file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

LineWaitKind = Literal["malformed", "gone", "changed"]


@dataclass(frozen=True)
class LineWait:
    """A job's wait for its line.

    kind         "malformed": `line_number` has a typo of the line and waits for its correction;
                 "gone": the line is missing; the job is cancelled at `due_at` unless the line comes back;
                 "changed": `line_number` has other attributes, which apply at `due_at`.
    due_at       boot seconds; None = unknown, because a program still has the file open for writing.
    """

    kind: LineWaitKind
    line_number: int | None = None
    due_at: float | None = None

    def to_json(self) -> str:
        """Returns the stored form of the value."""
        return json.dumps([self.kind, self.line_number, self.due_at])

    @staticmethod
    def from_json(text: str) -> LineWait:
        """Returns the value that `to_json` wrote."""
        return LineWait(*json.loads(text))
