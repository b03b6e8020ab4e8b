"""A line of a jobs file as the readings keep it. What a reading means is decided in `reading`."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpu_scheduler.core.jobline import Malformed, Parsed
from gpu_scheduler.core.jobspec import JobSpec, Kind


def said(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a line gives, so that one which a later version adds is no change."""
    given = {name: value for name, value in attributes.items() if value is not None and value is not False}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def attributes_to_json(attributes: Mapping[str, Any]) -> str:
    """Attributes as the record keeps them."""
    return json.dumps(said(attributes), ensure_ascii=False, sort_keys=True)


def attributes_from_json(text: str) -> dict[str, Any]:
    """What `attributes_to_json` wrote."""
    return said(json.loads(text))


@dataclass(frozen=True)
class Line:
    """A line that is a job or a mistake.

    number      from 1, counting every line of the file.
    raw         the whole line as it stands there, its line ending included where it has one.
    identity    of what it runs; None = malformed, and `problem` and `accepted` say why.
    attributes  those that the line gives.
    fresh       a malformed line that came while others were gone: as long as it stands they are not removed.
    """

    number: int
    raw: str
    text: str
    kind: Kind | None = None
    identity: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    accepted: str | None = None
    fresh: bool = False

    @property
    def malformed(self) -> bool:
        """Whether it is a mistake."""
        return self.identity is None

    @property
    def ends(self) -> bool:
        """Whether it has its line ending."""
        return self.raw.endswith("\n")

    @cached_property
    def what(self) -> str:
        """What makes two lines the same apart from their attributes."""
        return self.identity if self.identity is not None else f"malformed {self.text}"

    @cached_property
    def key(self) -> Hashable:
        """Equal for lines that say the same."""
        return self.what, tuple(sorted(self.attributes.items()))


@dataclass(frozen=True)
class BoundLine(Line):
    """A line of an accepted reading. Of equal CSV lines the first one alone has the job."""

    job_id: int | None = None


@dataclass(frozen=True)
class ParsedLine(Line):
    """A line of the file as it stands now. spec is None for a malformed line, and for one that is no longer
    in the file but is kept in the reading for a while (see `saves`)."""

    spec: JobSpec | None = None
    notes: tuple[str, ...] = ()


Reading = tuple[BoundLine, ...]


def parsed_line(number: int, raw: str, result: Parsed | Malformed) -> ParsedLine:
    """The line that `parse_line` read."""
    if isinstance(result, Malformed):
        text = raw.strip("\ufeff \t\r\n")
        return ParsedLine(number, raw, text, problem=result.reason, accepted=result.accepted)
    spec = result.spec
    return ParsedLine(
        number, raw, spec.text, spec.kind, spec.identity, said(spec.attributes), spec=spec, notes=result.notes
    )
