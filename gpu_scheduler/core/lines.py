"""A line of a jobs file as the readings keep it. What a reading means is decided in `reading`."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu_scheduler.core.jobline import Malformed, Parsed
from gpu_scheduler.core.jobspec import JobSpec, Kind


def said(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a line gives, so that one which a later version adds is no change."""
    given = {name: value for name, value in attributes.items() if value is not None and value is not False}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def attributes_to_json(attributes: Mapping[str, Any]) -> str:
    """Attributes as the record keeps them."""
    return _as_json(tuple(said(attributes).items()))


@lru_cache(maxsize=4096)
def _as_json(items: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(items), ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=4096)
def attributes_from_json(text: str) -> Mapping[str, Any]:
    """What `attributes_to_json` wrote; one and the same value for the many lines that say the same."""
    return said(json.loads(text))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a job or a mistake. A queue of 100,000 keeps as many of these.

    number      from 1, counting every line of the file.
    raw         the whole line as it stands there, its line ending included where it has one.
    identity    of what it runs; None = malformed, and `problem` and `accepted` say why.
    attributes  those that the line gives.
    fresh       a malformed line that is a typo of a line which the reading keeps until it is mended.
    job_id      in an accepted reading. Of equal CSV lines the first one alone has the job.
    spec        of a line that was parsed just now; a reading does not keep it. notes: what to say about it.
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
    job_id: int | None = None
    spec: JobSpec | None = None
    notes: tuple[str, ...] = ()

    @property
    def malformed(self) -> bool:
        """Whether it is a mistake."""
        return self.identity is None

    @property
    def ends(self) -> bool:
        """Whether it has its line ending."""
        return self.raw.endswith("\n")

    @property
    def what(self) -> str:
        """What makes two lines the same apart from their attributes."""
        return self.identity if self.identity is not None else f"malformed {self.text}"

    @property
    def key(self) -> Hashable:
        """Equal for lines that say the same."""
        return self.what, tuple(sorted(self.attributes.items()))

    def same_as(self, other: Line) -> bool:
        """Whether both have the same key."""
        return self is other or (self.what == other.what and self.attributes == other.attributes)

    def is_written_as(self, other: Line) -> bool:
        """Whether both stand at one place of the file in the same letters, and were read alike."""
        return self is other or (
            self.number == other.number
            and self.raw == other.raw
            and self.problem == other.problem
            and self.fresh == other.fresh
            and self.same_as(other)
        )

    def is_moved_from(self, other: Line, down: int) -> bool:
        """Whether it is a line of a reading that stood so many lines higher up before."""
        return self.number == other.number + down and (
            self is other
            or (
                self.raw == other.raw
                and self.job_id == other.job_id
                and self.problem == other.problem
                and self.accepted == other.accepted
                and self.fresh == other.fresh
                and self.same_as(other)
            )
        )

    def bound(self, job_id: int | None) -> Line:
        """The line as a reading keeps it, with this job."""
        if self.job_id == job_id and self.spec is None and not self.notes:
            return self
        return Line(
            self.number, self.raw, self.text, self.kind, self.identity, self.attributes, self.problem,
            self.accepted, self.fresh, job_id,
        )  # fmt: skip

    def numbered(self, number: int) -> Line:
        """The same line at another place of the file."""
        if number == self.number:
            return self
        return Line(
            number, self.raw, self.text, self.kind, self.identity, self.attributes, self.problem,
            self.accepted, self.fresh, self.job_id, self.spec, self.notes,
        )  # fmt: skip


Reading = tuple[Line, ...]


def parsed_line(number: int, raw: str, result: Parsed | Malformed) -> Line:
    """The line that `parse_line` read."""
    if isinstance(result, Malformed):
        text = raw.strip("\ufeff \t\r\n")
        return Line(number, raw, text, problem=result.reason, accepted=result.accepted)
    spec = result.spec
    given = [pair for pair in spec.attributes.items() if pair[1] is not None and pair[1] is not False]
    attributes = _shared(tuple(given))
    return Line(number, raw, spec.text, spec.kind, spec.identity, attributes, spec=spec, notes=result.notes)


@lru_cache(maxsize=4096)
def _shared(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    return dict(items)
