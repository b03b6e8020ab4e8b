"""The reason for which a waiting job is not started although a GPU may be free: its line of the jobs file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

Kind = Literal["malformed", "gone", "changed"]


@dataclass(frozen=True)
class LineWait:
    """A job waits for its line.

    kind    "malformed": line `number` is a typo of it, until somebody mends that line;
            "gone": the line is missing; at `due` the job is cancelled, unless the line comes back;
            "changed": line `number` has other attributes, which count at `due`.
    due     boot seconds; None = not known, because a program still has the file open for writing.
    """

    kind: Kind
    number: int | None = None
    due: float | None = None

    def to_json(self) -> str:
        """The value as the record keeps it."""
        return json.dumps([self.kind, self.number, self.due])

    @staticmethod
    def from_json(text: str) -> LineWait:
        """The value that `to_json` wrote."""
        return LineWait(*json.loads(text))
