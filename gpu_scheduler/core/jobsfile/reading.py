"""Defines a line of a jobs file as a reading keeps it. `diff` compares two readings."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpu_scheduler.core.jobsfile.job_line import Malformed, ParsedJob
from gpu_scheduler.core.model.job_spec import JobSpec, Kind


def given_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes that a line sets; an attribute added by a later version is then not a change."""
    given = {name: value for name, value in attributes.items() if value is not None and value is not False}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def attributes_to_json(attributes: Mapping[str, Any]) -> str:
    """Returns attributes as JSON for the store."""
    return _as_json(tuple(given_attributes(attributes).items()))


@lru_cache(maxsize=4096)
def _as_json(items: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(items), ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=4096)
def attributes_from_json(text: str) -> Mapping[str, Any]:
    """Parses the output of `attributes_to_json`; lines with equal attributes share one value."""
    return given_attributes(json.loads(text))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a job or a mistake. A queue of 100,000 lines keeps as many of these.

    number      from 1, counting every line of the file.
    raw         the whole line as in the file, including its line ending if it has one.
    identity    digest of what it runs; None if malformed: `problem` and `accepted_form` then give the reason.
    attributes  those that the line sets.
    is_typo     set on a malformed line that is a typo of a line which the reading keeps until it is fixed.
    job_id      set in an accepted reading. Of equal CSV lines, only the first one has the job.
    spec        set only on a line that was just parsed; a reading does not keep it. notes: remarks to log,
                which a line with the text of an earlier one may lack.
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
        """A key that is equal for lines that differ in their attributes only."""
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
        """Returns whether both have the same text and parse result, this one `shift` lines later."""
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
        """Returns the line as a reading keeps it, with this job."""
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
    given = [pair for pair in spec.attributes.items() if pair[1] is not None and pair[1] is not False]
    attributes = _interned(tuple(given))
    return Line(number, raw, spec.text, spec.kind, spec.identity, attributes, spec=spec, notes=result.notes)


@lru_cache(maxsize=4096)
def _interned(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    return dict(items)
