"""Judges the states and dependencies of jobs that are left when a scheduler has drained its queue."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gpu_scheduler.core.jobsfile.reading import Line, find_cycles
from gpu_scheduler.core.model.job_spec import (
    UNRESOLVED,
    Dependency,
    DependencyKind,
    Parent,
    ParentStatus,
    status_of,
)
from gpu_scheduler.core.model.request import AnswerCode
from gpu_scheduler.store.job_lists import dependencies_of, parents_of
from gpu_scheduler.store.jobs_files import load_reading
from gpu_scheduler.store.requests import request_answer
from gpu_scheduler.store.store import Store
from tests.stress.part import Findings

#: The front end that makes the requests of the user.
BY = "stress"
#: The attributes with the parents of a job.
KINDS = {"after": DependencyKind.COMPLETED, "after_any": DependencyKind.FINISHED}
#: The answers to a request that has changed the parents of a job.
_CHANGED = (AnswerCode.ATTRIBUTE_SET, AnswerCode.ATTRIBUTE_REMOVED)


def judge_rest(store: Store, found: Findings) -> None:
    """Checks that each job has ended, is held or waits for such a job, and that all skips are due."""
    held = {row["id"]: row for row in store.db.rows("SELECT id, reason FROM job WHERE state = 'held'")}
    found.figures["jobs held in the end"] = len(held)
    for job_id, row in held.items():
        if row["reason"] is None:
            found.fault("unexplained", f"job {job_id} is held, without a reason")
    for row in store.db.rows("SELECT id, state, outcome FROM job WHERE outcome = 'skipped'"):
        if not any(status_of(parent) is ParentStatus.FAILED for parent in _parents(store, row["id"])):
            found.fault("skipped wrongly", f"job {row['id']} has no failed parent in the end")
    rows = store.db.rows("SELECT id, state, line_wait FROM job WHERE state NOT IN ('finished', 'held')")
    found.figures["jobs blocked in the end"] = len(rows)
    waiting = {UNRESOLVED, *held, *(row["id"] for row in rows)}
    for row in rows:
        pending = [one for one in _parents(store, row["id"]) if status_of(one) is not ParentStatus.MET]
        is_explained = row["line_wait"] is not None or any(one.id in waiting for one in pending)
        if row["state"] != "queued" or not is_explained:
            found.fault("stuck", f"{dict(row)} waits for {pending}")
    _judge_cycles(store, found)


def _judge_cycles(store: Store, found: Findings) -> None:
    edges: dict[int, set[int]] = {}
    for row in store.db.rows("SELECT job_id, parent_id FROM dependency"):
        edges.setdefault(row["job_id"], set()).add(row["parent_id"])
    cyclic = find_cycles(edges)
    if cyclic:
        found.fault("cycles", f"jobs {sorted(cyclic)} wait for each other")


def judge_completion(store: Store, found: Findings) -> None:
    """Checks that every job has completed."""
    for row in store.db.rows("SELECT id, state, outcome FROM job WHERE outcome IS NOT 'completed'"):
        found.fault("stuck", f"{dict(row)} in the end; its parents are {_parents(store, row['id'])}")


def judge_inserted(store: Store, inserted: Mapping[int, Collection[Dependency]], found: Findings) -> None:
    """Checks that the jobs that were inserted with these dependencies still have them.

    Dependencies of one kind are replaced by a request that was answered positively.
    """
    wanted = {(job_id, kind): _of_kind(edges, kind) for job_id, edges in inserted.items() for kind in KINDS}
    for row in store.db.rows(
        "SELECT id, target, args FROM request WHERE verb = 'set' AND by = ? ORDER BY id", BY
    ):
        answer, args = request_answer(store, row["id"]), json.loads(row["args"])
        if answer is not None and answer.code in _CHANGED:
            wanted[int(row["target"]), args["name"]] = {parent for parent, _ in args["parents"]}
    edges = dependencies_of(store, inserted)
    for (job_id, kind), parents in wanted.items():
        if _of_kind(edges.get(job_id, ()), kind) != parents:
            found.fault("wrong parents", f"job {job_id} waits for {edges.get(job_id)}, not {kind} {parents}")


def judge_lines(store: Store, file: Path, found: Findings) -> list[Line]:
    """Checks that the jobs of all lines wait for the lines with the names in them.

    Returns the lines that are malformed, or whose job has a reference that would make it wait for itself.
    """
    reading = load_reading(store, str(file))
    # A line that has become malformed follows its last valid version.
    replaced = {at - 1 for at, line in enumerate(reading) if line.is_typo}
    lines = [line.raw for at, line in enumerate(reading) if at not in replaced]
    if lines != file.read_text().splitlines(keepends=True):
        found.fault("lost", "the last version of the jobs file has not been read")
    named: dict[str, set[int]] = {}
    for line in reading:
        if line.job_id is None and not line.malformed:
            found.fault("lost", f"{line} has no job")
        elif line.job_id is not None and "name" in line.attributes:
            named.setdefault(line.attributes["name"], set()).add(line.job_id)
    jobs = {line.job_id: line for line in reading if line.job_id is not None and not line.malformed}
    edges = dependencies_of(store, jobs)
    wrong = [line for line in reading if line.malformed]
    for job_id, line in jobs.items():
        parents = edges.get(job_id, set())
        if any(one.parent_id == UNRESOLVED for one in parents):
            wrong.append(line)
        elif not all(_is_bound(line, kind, _of_kind(parents, kind), named) for kind in KINDS):
            found.fault("wrong parents", f"{line} waits for {parents}")
    return wrong


def _is_bound(line: Line, kind: str, parents: set[int], named: Mapping[str, set[int]]) -> bool:
    """Returns whether a line waits for all lines with the names in it, and for no others if it need not.

    A name that no line has any more means the jobs that it meant before.
    """
    references = line.attributes.get(kind, ())
    known = [{int(one)} if one.isdigit() else named.get(one) for one in references]
    wanted = set().union(*(one for one in known if one is not None))
    return wanted <= parents if None in known else wanted == parents


def _of_kind(edges: Iterable[Dependency], kind: str) -> set[int]:
    return {one.parent_id for one in edges if one.kind is KINDS[kind]}


def _parents(store: Store, job_id: int) -> tuple[Parent, ...]:
    return parents_of(store, [job_id]).get(job_id, ())
