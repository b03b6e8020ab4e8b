"""Finds wrong references to other jobs: unknown ids and names, and jobs that would wait for themselves.

A number is an id. A name, a group or a pattern means all lines with such a name or, if there are none, the
newest job with each such name (`core.model.job_spec`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from msgspec import Struct, field

from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.model import job_spec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason

# Finds the nodes of a graph that wait for themselves.


_Node = TypeVar("_Node", bound=Hashable)


def find_cycles(parents: Mapping[_Node, Iterable[_Node]]) -> set[_Node]:
    """Returns the nodes that lie on a cycle, or on a path from one cycle to another.

    parents: the nodes that each node waits for. Takes time in proportion to the number of edges.
    """
    above = {node: {parent for parent in of if parent in parents} for node, of in parents.items()}
    below: dict[_Node, set[_Node]] = {node: set() for node in above}
    for node, of in above.items():
        for parent in of:
            below[parent].add(node)
    _trim(above, below)
    _trim(below, above)
    return set(above)


def _trim(ahead: dict[_Node, set[_Node]], behind: dict[_Node, set[_Node]]) -> None:
    """Removes every node without nodes ahead, then those that this leaves without nodes ahead, and so on."""
    loose = [node for node, of in ahead.items() if not of]
    while loose:
        node = loose.pop()
        for other in behind.pop(node):
            ahead[other].discard(node)
            if not ahead[other]:
                loose.append(other)
        del ahead[node]


#: Maximum number of dependencies through one name. Storing a million of them takes about ten seconds.
MAX_DEPENDENCIES = 1_000_000
ACCEPTED_FORM = (
    "after=JOBS with the ids of jobs, and with names or groups that lines of this file or jobs have"
)

_NAME_ITEM = re.compile(rf"\[(?:[^\]]*[ \t])?name=({job_spec.NAME})")


class TextReferences(Struct, frozen=True):
    """The names in a text, with their groups as in `core.model.job_spec`.

    names: those of its well-formed lines, with the number of these lines; referenced: those that its lines
    wait for, with the number of these lines; malformed: those that its malformed lines seem to have, each
    with the line number of one of them.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    referenced: Mapping[str, int] = field(default_factory=dict)
    malformed: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[Line]) -> TextReferences:
        """Returns the names in a text with these lines."""
        malformed = {
            key: line.number
            for line in lines
            if line.identity is None and (found := _NAME_ITEM.match(line.text)) is not None
            for key in job_spec.keys_of(found[1])
        }
        return cls(
            Counter(key for line in lines if "name" in line.attributes for key in name_keys(line)),
            Counter(one for line in lines for one in references_of(line)),
            malformed,
        )


def uncounted_names(
    lines: Sequence[Line], reading: Collection[Line], due_at: float | None
) -> dict[str, WaitReason]:
    """Returns the names of lines that do not count yet, each with the reason for which others wait for it.

    lines: the lines of the text; reading: those that count; due_at: when the others will count, if known.
    """
    named = [line for line in lines if "name" in line.attributes]
    counted = {line.raw for line in reading} if named else set()
    return {
        line.attributes["name"]: WaitReason(WaitKind.LINE_CHANGED, line_number=line.number, due_at=due_at)
        for line in named
        if line.raw not in counted
    }


def malformed_names(text: TextReferences) -> dict[str, WaitReason]:
    """Returns the names of malformed lines, each with the reason for which others wait for it."""
    return {
        name: WaitReason(WaitKind.LINE_MALFORMED, line_number=number)
        for name, number in text.malformed.items()
    }


def name_keys(line: Line) -> tuple[str, ...]:
    """Returns the keys of a line in a table of names; none if it has no name."""
    return job_spec.keys_of(line.attributes["name"]) if "name" in line.attributes else ()


def references_of(line: Line) -> tuple[str, ...]:
    """Returns the ids and names that a line waits for."""
    return (*line.attributes.get("after", ()), *line.attributes.get("after_any", ()))


def find_wrong_references(
    lines: Sequence[Line], exists: Callable[[str], bool], accepted: Reading = ()
) -> dict[int, str]:
    """Returns the problem of each line with a wrong reference, by its index in `lines`.

    A line that waits for a malformed line is wrong as well, because there is no job for it to wait for yet.
    lines: those of the whole text; exists: returns whether a reference is the id or the name of a job;
    accepted: the last reading, whose lines are not checked again.
    """
    known = {line.raw for line in accepted if references_of(line)}
    checked = [i for i, line in enumerate(lines) if references_of(line) and line.raw not in known]
    return _ReferenceCheck(lines, cache(exists), checked).problems() if checked else {}


class _ReferenceCheck:
    """Checks the lines with the indices `checked`."""

    def __init__(self, lines: Sequence[Line], exists: Callable[[str], bool], checked: Sequence[int]) -> None:
        self._lines, self._exists, self._checked = lines, exists, checked
        self._text = TextReferences.of(lines)
        self._patterns = [one for one in self._text.referenced if job_spec.is_pattern(one)]
        keys = {*self._text.names, *self._text.malformed}
        self._meant_by = cache(lambda reference: job_spec.meant_by(reference, keys))

    def problems(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for index in self._checked:
            problem = self._wrong_reference(self._lines[index])
            if problem is not None:
                found[index] = problem
        self._add_cycles(found)
        self._add_children(found)
        return found

    def _wrong_reference(self, line: Line) -> str | None:
        for item, reference in _items(line):
            if reference.isdigit():
                if self._exists(reference):
                    continue
                return f"{item}: there is no job {reference}; `status --all` lists the jobs"
            meant = self._meant_by(reference)
            for name in meant:
                if name in self._text.malformed:
                    return _malformed_parent(item, self._text.malformed[name])
            named = sum(self._text.names.get(name, 0) for name in meant)
            waiting = self._text.referenced[reference]
            if named * waiting > MAX_DEPENDENCIES:
                return (
                    f"{item}: {waiting:,} lines wait for {named:,} lines with this name, which is too many;"
                    f" let them wait for a single line `[name=NAME after={reference}] true`"
                )
            if named or self._exists(reference):
                continue
            if job_spec.is_pattern(reference):
                return f"{item}: no line of this file and no job has such a name; correct the pattern"
            return (
                f"{item}: no line of this file and no job has this name; correct it, or add a line with"
                f" [name={reference}]"
            )
        return None

    def _add_cycles(self, found: dict[int, str]) -> None:
        """Adds the lines that wait for themselves, through a line with one of their names or directly."""
        if not any("name" in self._lines[index].attributes for index in self._checked):
            return
        # A name waits for the references of all lines that have it. `intake` finds a cycle through a group.
        graph: dict[str, set[str]] = defaultdict(set)
        for line in self._lines:
            name, references = line.attributes.get("name"), references_of(line)
            if name is not None and references:  # no other line can be on a cycle
                graph[name].update(one for one in references if not one.isdigit())
        cyclic = find_cycles(graph)
        for index in self._checked if cyclic else ():
            line = self._lines[index]
            for item, reference in _items(line):
                if line.attributes.get("name") in cyclic and reference in cyclic and index not in found:
                    number = next(
                        one.number
                        for one in self._lines
                        if one.attributes.get("name") == reference
                        and not cyclic.isdisjoint(references_of(one))
                    )
                    found[index] = _cycle(item, line.number, number)

    def _add_children(self, found: dict[int, str]) -> None:
        """Adds the lines that wait for a line that was found to be wrong."""
        children: dict[str, list[int]] = defaultdict(list)
        for index in self._checked if found else ():
            for reference in references_of(self._lines[index]):
                if not reference.isdigit():
                    children[reference].append(index)
        parents = list(found)
        while parents:
            parent = self._lines[parents.pop()]
            name = parent.attributes.get("name")
            meaning = [] if name is None else job_spec.references_to(name, self._patterns)
            for reference in meaning:
                if set(self._meant_by(reference)).isdisjoint(name_keys(parent)):
                    continue
                for index in children.pop(reference, ()):
                    if index not in found:
                        item = next(item for item, one in _items(self._lines[index]) if one == reference)
                        found[index] = _malformed_parent(item, parent.number)
                        parents.append(index)


def _items(line: Line) -> Iterator[tuple[str, str]]:
    """Yields each reference of a line, as an attribute such as "after=prep" and alone."""
    return ((f"{kind.attribute}={one}", one) for kind, one in job_spec.references(line.attributes))


def _cycle(item: str, number: int, through: int) -> str:
    if number == through:
        return f"{item}: the job would wait for itself; remove this reference, or change the name of the line"
    return (
        f"{item}: the job would wait for itself, through line {through}; remove one of the references between"
        " these lines"
    )


def _malformed_parent(item: str, number: int) -> str:
    return f"{item}: line {number}, which has this name, is malformed; correct line {number} first"
