"""Finds the parents of the pending jobs of a `queue.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.core.jobsfile.cycles import find_cycles
from gpu_scheduler.intake.queue_json import COMPLETED, QueueEntry


@dataclass(frozen=True)
class Parents:
    """The parents of the pending jobs, as positions in the file.

    waits_for: the pending parents of each pending job, with parents before their children and otherwise in
    the order of the file; missing: the parents that neither completed nor are pending, for each job that has
    any; problems: references that name no job or several jobs, and jobs that wait for themselves.
    """

    waits_for: Mapping[int, Sequence[int]]
    missing: Mapping[int, Sequence[QueueEntry]]
    problems: Sequence[str]


@dataclass
class _Search:
    waits_for: dict[int, list[int]] = field(default_factory=dict)
    missing: dict[int, list[QueueEntry]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def find_parents(entries: Sequence[QueueEntry]) -> Parents:
    """Returns the parents of the pending jobs."""
    ids = {entry.id: entry for entry in entries}
    names: dict[str, list[QueueEntry]] = {}
    for entry in entries:
        if entry.name is not None:
            names.setdefault(entry.name, []).append(entry)
    found = _Search()
    for entry in entries:
        if not entry.is_pending:
            continue
        waits_for = found.waits_for[entry.number] = []
        for reference in entry.after:
            try:
                parent = _resolve(reference, ids, names)
            except ValueError as error:
                found.problems.append(f"{entry.label}: {error}")
                continue
            if parent.is_pending and parent.number not in waits_for:
                waits_for.append(parent.number)
            elif not parent.is_pending and parent.status not in COMPLETED:
                missing = found.missing.setdefault(entry.number, [])
                missing += [parent] if parent not in missing else []
    cycles = find_cycles(found.waits_for)
    if cycles:
        listed = ", ".join(map(str, sorted(cycles)))
        found.problems.append(f"job {listed}: `after` makes the job wait for itself" if len(cycles) == 1 else
                              f"jobs {listed}: `after` makes these jobs wait for one another")  # fmt: skip
        return Parents({}, found.missing, found.problems)
    return Parents(_parents_first(found.waits_for), found.missing, found.problems)


def _resolve(
    reference: int | str, ids: Mapping[int, QueueEntry], names: Mapping[str, Sequence[QueueEntry]]
) -> QueueEntry:
    """Returns the job with this id or name; a text of digits is an id. Raises ValueError."""
    number = int(reference) if isinstance(reference, int) or reference.isdecimal() else None
    if number is not None and number in ids:
        return ids[number]
    named = names.get(str(reference), ())
    if not named:
        raise ValueError(
            f"after {reference}: the file has no such job; if gpuq has cleared it, remove it from `after`"
        )
    if len(named) > 1:
        same = ", ".join(str(entry.id) for entry in named)
        raise ValueError(f"after {reference}: the jobs {same} have this name; give one of these ids")
    return named[0]


def _parents_first(waits_for: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
    """Returns the mapping in an order in which every job follows its parents. It must have no cycle."""
    ordered: dict[int, Sequence[int]] = {}
    for number in waits_for:
        stack = [number]
        while stack:
            first = [parent for parent in waits_for[stack[-1]] if parent not in ordered]
            if first:
                stack += reversed(first)
            else:
                last = stack.pop()
                ordered.setdefault(last, waits_for[last])
    return ordered
