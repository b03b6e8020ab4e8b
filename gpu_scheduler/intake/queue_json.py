"""Parses the `queue.json` of gpuq, a queue of Python scripts, and checks every value that is used.

Nothing outside the text is consulted: `app.import_queue` checks scripts, folders and interpreters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import MAX_RETRIES
from gpu_scheduler.core.jobsfile.references import find_cycles
from gpu_scheduler.core.text import strict_json
from gpu_scheduler.core.text.quoting import split_words

#: The statuses of jobs that are imported, and those of jobs that count as completed.
PENDING = frozenset({"pending", "queued"})
COMPLETED = frozenset({"done", "completed"})


@dataclass(frozen=True)
class QueueEntry:
    """A job of a `queue.json`. The fields after `status` have their defaults unless the job is pending.

    number: its position in the file, from 1; id: its `id` or, without that key, its position; python, cwd:
    None if not given; after: the ids and names of its parents; retries: the number of retries that are left.
    """

    number: int
    id: int
    name: str | None
    status: str
    script: str = ""
    args: tuple[str, ...] = ()
    python: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    after: tuple[int | str, ...] = ()
    retries: int = 0

    @property
    def is_pending(self) -> bool:
        """True if the job is imported."""
        return self.status in PENDING

    @property
    def label(self) -> str:
        """The position and the name, for messages: "job 2 (eval)"."""
        return f"job {self.number}" if self.name is None else f"job {self.number} ({self.name})"


def parse_queue(data: bytes) -> tuple[list[QueueEntry], list[str]]:
    """Returns the jobs of a `queue.json` and the problems of those that are pending.

    A job with a problem is left out. Raises ValueError if the text is not a queue.
    """
    value = strict_json.parse(strict_json.decode(data))
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise ValueError('not a queue, which is an object with a list of jobs: {"jobs": […]}')
    entries, problems = [], []
    for number, job in enumerate(jobs, 1):
        try:
            entries.append(_parse_entry(number, job))
        except ValueError as error:
            problems.append(str(error))
    seen: dict[int, QueueEntry] = {}
    for entry in entries:
        if seen.setdefault(entry.id, entry) is not entry:
            problems.append(f"{entry.label} has the id {entry.id} of {seen[entry.id].label}")
    return entries, problems


def _parse_entry(number: int, job: object) -> QueueEntry:
    """Parses one job. Raises ValueError with all problems of the job."""
    if not isinstance(job, dict):
        raise ValueError(f"job {number} is not an object")
    given = {key: value for key, value in job.items() if value is not None}
    wrong = {key for key in ("id", "name", "status") if key in given and not _KEYS[key].accepts(given[key])}
    entry = QueueEntry(
        number,
        number if "id" in wrong else given.get("id", number),
        None if "name" in wrong else given.get("name") or None,
        "pending" if "status" in wrong else given.get("status", "pending").lower(),
    )
    if entry.is_pending:
        problems = list(_problems(given))
        problems += [] if given.get("script") else ["script is missing"]
    else:
        problems = [_wrong_value(key, given[key]) for key in sorted(wrong)]
    if problems:
        raise ValueError(f"{entry.label}: {'; '.join(problems)}")
    return _with_command(entry, given) if entry.is_pending else entry


def _with_command(entry: QueueEntry, given: Mapping[str, Any]) -> QueueEntry:
    args, after = given.get("args", ()), given.get("after", ())
    return QueueEntry(
        entry.number,
        entry.id,
        entry.name,
        entry.status,
        script=given["script"],
        args=split_words(args) if isinstance(args, str) else tuple(args),
        python=given.get("python") or None,
        cwd=given.get("cwd") or None,
        env=given.get("env", {}),
        after=tuple(after) if isinstance(after, (list, tuple)) else (after,),
        # `retries` is the total; an interrupted job may have used some of them.
        retries=max(0, given.get("retries", 0) - given.get("attempt", 0)),
    )


@dataclass(frozen=True)
class _Key:
    """A key of a job. form: the accepted values in words."""

    accepts: Callable[[Any], bool]
    form: str


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole_number(value: object, least: int = 0, most: int = 10**9) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_reference(value: object) -> bool:
    return _is_whole_number(value, 1) or (isinstance(value, str) and value != "")


def _are_arguments(value: object) -> bool:
    if isinstance(value, str):
        try:
            split_words(value)
        except ValueError:
            return False
        return True
    return isinstance(value, list) and all(map(_is_text, value))


_KEYS = {
    "id": _Key(lambda value: _is_whole_number(value, 1), "a whole number above 0"),
    "name": _Key(_is_text, "a text"),
    "script": _Key(_is_text, "a path"),
    "args": _Key(_are_arguments, "a list of texts, or one text with balanced quotes"),
    "python": _Key(_is_text, "a program or a path"),
    "cwd": _Key(_is_text, "a path"),
    "env": _Key(
        lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
        "an object whose values are texts",
    ),
    "status": _Key(_is_text, "a text"),
    "after": _Key(
        lambda value: all(map(_is_reference, value)) if isinstance(value, list) else _is_reference(value),
        "an id, a name, a list of these, or null",
    ),
    "retries": _Key(
        lambda value: _is_whole_number(value, 0, MAX_RETRIES), f"a whole number from 0 to {MAX_RETRIES}"
    ),
    "attempt": _Key(_is_whole_number, "a whole number"),
}
#: Keys that describe earlier runs of a job.
_UNUSED = frozenset({"pid", "added_at", "started_at", "finished_at", "exit_code", "log_file"})


def _problems(given: Mapping[str, Any]) -> list[str]:
    found = []
    for key, value in given.items():
        if key not in _KEYS and key not in _UNUSED:
            found.append(f"key {json.dumps(key)} is unknown; known: {', '.join(_KEYS)}")
        elif key in _KEYS and not _KEYS[key].accepts(value):
            found.append(_wrong_value(key, value))
    return found


def _wrong_value(key: str, value: object) -> str:
    return f"{key} must be {_KEYS[key].form}, not {json.dumps(value)[:80]}"


# Finds the parents of the pending jobs of a `queue.json`.


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
