"""Defines the lines that make up a reading of a jobs file. `diff` compares two readings."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from gpu_scheduler.core.jobsfile.attributes import is_unset
from gpu_scheduler.core.jobsfile.job_line import Malformed, ParsedJob
from gpu_scheduler.core.model.job_spec import JobSpec, Kind


def given_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns only the attributes that a line sets.

    An attribute that a later version adds therefore does not count as a change.
    """
    given = {name: value for name, value in attributes.items() if not is_unset(value)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def attributes_to_json(attributes: Mapping[str, Any]) -> str:
    """Returns attributes as JSON for the store."""
    return _as_json(tuple(given_attributes(attributes).items()))


@lru_cache(maxsize=4096)
def _as_json(items: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(items), ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=4096)
def attributes_from_json(text: str) -> Mapping[str, Any]:
    """Parses the output of `attributes_to_json`. Lines with equal attributes share one object."""
    return given_attributes(json.loads(text))


class Line(Struct, frozen=True):
    """A line that defines a job or is malformed. It has slots because a reading can have 100,000 lines.

    number      the line number, from 1, counting every line of the file.
    raw         the whole line as in the file, including its line ending if it has one.
    identity    a digest of what the line runs; None if the line is malformed, and `problem` and
                `accepted_form` are then set.
    attributes  the attributes that the line sets.
    is_typo     True for a malformed line that has replaced a valid one. The reading also keeps the valid line
                until this one is fixed.
    job_id      the job of a line in an accepted reading. Of several equal CSV lines, only the first has it.
    spec        the job's specification, only on a line that has just been parsed; a reading does not keep it.
    notes       remarks to log about a line that has just been parsed; they may be absent if an earlier line
                has the same text.
    """

    number: int
    raw: str
    text: str
    kind: Kind | None = None
    identity: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    accepted_form: str | None = None
    is_typo: bool = False
    job_id: int | None = None
    spec: JobSpec | None = None
    notes: tuple[str, ...] = ()

    @property
    def malformed(self) -> bool:
        """True for a malformed line."""
        return self.identity is None

    @property
    def has_newline(self) -> bool:
        """True if the line has a line ending."""
        return self.raw.endswith("\n")

    @property
    def content_key(self) -> str:
        """A key that is equal for lines that differ only in their attributes."""
        return self.identity if self.identity is not None else f"malformed {self.text}"

    @property
    def key(self) -> Hashable:
        """A key that is equal for lines with the same meaning."""
        return self.content_key, tuple(sorted(self.attributes.items()))

    def is_equivalent_to(self, other: Line) -> bool:
        """Returns whether both lines have the same key."""
        return self is other or (
            self.content_key == other.content_key and self.attributes == other.attributes
        )

    def is_identical_to(self, other: Line, shift: int = 0) -> bool:
        """Returns whether both lines have the same text and parse result and are `shift` lines apart."""
        return self.number == other.number + shift and (
            self is other
            or (
                self.raw == other.raw
                and self.problem == other.problem
                and self.accepted_form == other.accepted_form
                and self.is_typo == other.is_typo
                and self.is_equivalent_to(other)
            )
        )

    def with_job(self, job_id: int | None) -> Line:
        """Returns the line with this job, and without the fields that a reading does not keep."""
        if self.job_id == job_id and self.spec is None and not self.notes:
            return self
        return Line(
            self.number, self.raw, self.text, self.kind, self.identity, self.attributes, self.problem,
            self.accepted_form, self.is_typo, job_id,
        )  # fmt: skip

    def with_number(self, number: int) -> Line:
        """Returns the same line with another line number."""
        if number == self.number:
            return self
        return Line(
            number, self.raw, self.text, self.kind, self.identity, self.attributes, self.problem,
            self.accepted_form, self.is_typo, self.job_id, self.spec, self.notes,
        )  # fmt: skip


Reading = tuple[Line, ...]


def line_from_result(number: int, raw: str, result: ParsedJob | Malformed) -> Line:
    """Returns the line for a result of `parse_line`."""
    if isinstance(result, Malformed):
        text = raw.strip("\ufeff \t\r\n")
        return Line(number, raw, text, problem=result.reason, accepted_form=result.accepted_form)
    spec = result.spec
    given = [(name, value) for name, value in spec.attributes.items() if not is_unset(value)]
    attributes = _interned(tuple(given))
    return Line(number, raw, spec.text, spec.kind, spec.identity, attributes, spec=spec, notes=result.notes)


@lru_cache(maxsize=4096)
def _interned(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    return dict(items)
