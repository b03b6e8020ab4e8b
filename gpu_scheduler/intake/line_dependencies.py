"""Stores the dependencies that the lines of a jobs file give to their jobs.

The dependencies of a job with a line follow from the reading, so the transaction that stores the reading also
stores them. They change no state: a later round skips or queues jobs according to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpu_scheduler.core.jobsfile.reading import Line, Reading, find_cycles, name_keys, references_of
from gpu_scheduler.core.model import job_spec
from gpu_scheduler.core.model.job_spec import UNRESOLVED, Dependency, DependencyKind
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.store.job_lists import (
    dependencies_of,
    dependent_jobs_of_file,
    edges_above,
    job_exists,
    newest_jobs_meant,
    remove_dependencies,
    unresolved_jobs_of_file,
)
from gpu_scheduler.store.store import Store, insert_dependencies


class ReferenceIndex:
    """The lines of a reading that matter to dependencies.

    named: the jobs of the lines by name, and by group; waiting: the jobs whose lines refer to each name or
    id; lines: the lines with references, by job.
    """

    def __init__(self, reading: Reading) -> None:
        self.named: dict[str, list[int]] = defaultdict(list)
        self.waiting: dict[str, list[int]] = defaultdict(list)
        self.lines: dict[int, Line] = {}
        # Only the first of several equal CSV lines has the job itself.
        csv_jobs = {line.identity: line.job_id for line in reading if line.kind == "csv" and line.job_id}
        for line in reading:
            for key in name_keys(line):
                job_id = csv_jobs.get(line.identity) if line.kind == "csv" else line.job_id
                if job_id is not None and not key.isdigit():  # a number is always an id
                    self.named[key].append(job_id)
            references = references_of(line)
            if references and line.job_id is not None:
                self.lines[line.job_id] = line
                for reference in dict.fromkeys(references):
                    self.waiting[reference].append(line.job_id)

    def demands_the_same(self, other: ReferenceIndex) -> bool:
        """Returns whether the lines of the other reading give the same dependencies to the same jobs."""
        return (
            self.named == other.named
            and self.waiting == other.waiting
            and all(list(self.references(job_id)) == list(other.references(job_id)) for job_id in self.lines)
        )

    def meant_by(self, reference: str) -> list[int]:
        """Returns the jobs of the lines that a reference means."""
        return [
            job_id for key in job_spec.meant_by(reference, self.named.keys()) for job_id in self.named[key]
        ]

    def references(self, job_id: int) -> Iterator[tuple[DependencyKind, str]]:
        """Yields the references of a job's line."""
        line = self.lines.get(job_id)
        if line is not None:
            yield from job_spec.references(line.attributes)


#: The dependencies of a job: the reference for each parent and kind.
Edges = dict[tuple[int, DependencyKind], str]


class LineDependencies:
    """Keeps the dependencies of the jobs of one jobs file as its lines demand."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self._reading: Reading | None = None
        self._index: ReferenceIndex | None = None  # of this reading
        #: The names of all lines in the file, including those that do not count yet.
        self._names: Collection[str] = ()
        #: The messages about references that mean no job at present.
        self._reported: set[str] = set()

    def store_changes(
        self,
        before: Reading,
        reading: Reading,
        new_jobs: Collection[int],
        names: Collection[str],
        *,
        only_new: bool = False,
    ) -> list[str]:
        """Stores the dependencies that `reading` changes, in the transaction that has stored the reading.

        before: the stored reading, which this one replaces; new_jobs: the jobs that the transaction inserted;
        names: the names of all lines in the file; only_new: whether the lines that have changed have new jobs
        only. Returns a message for each reference that names no job or would make its job wait for itself.
        """
        # If storing the last reading has failed, `before` is not that reading, and everything is computed.
        is_known = only_new and before is self._reading and names == self._names
        last = self._index if is_known else None
        index, self._names = self._index_of(reading), names
        if last is not None and index.demands_the_same(last):
            return []
        dependent = dependent_jobs_of_file(self._store, self._path)
        if not dependent and not index.lines:
            return []
        jobs = (*index.lines, *dependent)
        return self._replace(index, jobs, frozenset(new_jobs))

    def resolve_again(self, reading: Reading, names: Collection[str]) -> list[str]:
        """Resolves the references that mean no job again, because other jobs may have changed since.

        names: the names of all lines in the file. Returns messages like `store_changes`.
        """
        self._names = names
        jobs = unresolved_jobs_of_file(self._store, self._path)
        if not jobs:
            self._reported.clear()
            return []
        return self._replace(self._index_of(reading), jobs, frozenset())

    def waits_for(self, reading: Reading, names: Mapping[str, WaitReason]) -> dict[int, WaitReason]:
        """Returns the jobs whose lines refer to one of these names, each with the reason of that name."""
        if not names:
            return {}
        keys = {key: wait for name, wait in names.items() for key in job_spec.keys_of(name)}
        return {
            job_id: keys[key]
            for reference, jobs in self._index_of(reading).waiting.items()
            for key in job_spec.meant_by(reference, keys.keys())
            for job_id in jobs
        }

    def _index_of(self, reading: Reading) -> ReferenceIndex:
        if self._index is None or self._reading is not reading:
            self._reading, self._index = reading, ReferenceIndex(reading)
        return self._index

    def _replace(self, index: ReferenceIndex, jobs: Iterable[int], new_jobs: frozenset[int]) -> list[str]:
        """Stores the dependencies of these jobs where they differ from those in the store."""
        jobs = dict.fromkeys(jobs)
        stored = {
            job_id: {(one.parent_id, one.kind): one.reference for one in found}
            for job_id, found in dependencies_of(self._store, jobs.keys() - new_jobs).items()
        }
        found = {job_id: self._resolve(index, stored, job_id) for job_id in jobs}
        changed = {job_id: edges for job_id, edges in found.items() if edges != stored.get(job_id, {})}
        self._break_cycles(index, stored, changed, new_jobs)
        messages: list[str] = []
        with self._store.db.transaction() as db:
            for job_id, edges in changed.items():
                before = stored.get(job_id, {})
                removed, added = dict(before.items() - edges.items()), dict(edges.items() - before.items())
                remove_dependencies(db, job_id, removed)
                insert_dependencies(
                    db, job_id, [Dependency(*key, reference) for key, reference in added.items()]
                )
        for job_id, edges in found.items():
            messages += self._unresolved_messages(index, stored, job_id, changed.get(job_id, edges))
        return messages

    def _break_cycles(
        self,
        index: ReferenceIndex,
        stored: Mapping[int, Edges],
        changed: dict[int, Edges],
        new_jobs: frozenset[int],
    ) -> None:
        """Makes references unresolved until no job waits for itself.

        If a cycle has a new job, only the new job is blocked, because the others could run without it.
        """
        for jobs in (new_jobs, changed.keys()):
            cyclic = self._find_cyclic(stored, changed, new_jobs)
            for job_id in cyclic & changed.keys() & jobs:
                changed[job_id] = self._resolve(index, stored, job_id, cyclic)
            if not cyclic:
                return

    def _resolve(
        self, index: ReferenceIndex, stored: Mapping[int, Edges], job_id: int, cyclic: Collection[int] = ()
    ) -> Edges:
        """Returns the dependencies that the line of a job demands. cyclic: jobs that wait for themselves.

        If several references mean the same parent, the stored one stays, because it may be the only record
        of what it means.
        """
        edges: Edges = {}
        before = stored.get(job_id, {})
        for kind, reference in index.references(job_id):
            parents = self._parents(index, before, job_id, reference)
            if job_id in parents or any(parent in cyclic for parent in parents):
                parents = (UNRESOLVED,)
            for parent in parents:
                if before.get((parent, kind)) == reference:
                    edges[parent, kind] = reference
                else:
                    edges.setdefault((parent, kind), reference)
        return edges

    def _parents(self, index: ReferenceIndex, stored: Edges, job_id: int, reference: str) -> Sequence[int]:
        """Returns the jobs that a reference means.

        These are the jobs of lines with the name. If there are none, they are the jobs that the reference
        meant until their lines were removed or, for a new reference, the newest job with each such name.
        """
        if reference.isdigit():
            is_stored = any(parent == int(reference) for parent, _ in stored)
            return (int(reference) if is_stored or job_exists(self._store, reference) else UNRESOLVED,)
        meant = index.meant_by(reference)
        if meant:  # a job may wait for the others of its own group
            return meant if reference in index.named else [one for one in meant if one != job_id]
        known = [
            parent for (parent, _), meant in stored.items() if meant == reference and parent != UNRESOLVED
        ]
        if not known and job_spec.meant_by(reference, self._names):
            return (UNRESOLVED,)  # the line with this name does not count yet
        return known or newest_jobs_meant(self._store, reference, other_than=job_id) or (UNRESOLVED,)

    def _find_cyclic(
        self, stored: Mapping[int, Edges], changed: Mapping[int, Edges], new_jobs: frozenset[int]
    ) -> set[int]:
        """Returns the jobs that would wait for themselves with these dependencies."""
        graph = {job_id: {parent for parent, _ in edges} for job_id, edges in changed.items()}
        if changed.keys() <= new_jobs:  # no other job waits for a new one yet
            is_ordered = all(parent < job_id for job_id, parents in graph.items() for parent in parents)
            return set() if is_ordered else find_cycles(graph)
        # The stored dependencies have no cycle, so every cycle contains an added one.
        added = {
            parent
            for job_id, edges in changed.items()
            for parent, _ in edges.keys() - stored.get(job_id, {}).keys()
        }
        above = edges_above(self._store, added)
        return find_cycles({**above, **graph})

    def _unresolved_messages(
        self, index: ReferenceIndex, stored: Mapping[int, Edges], job_id: int, edges: Edges
    ) -> Iterator[str]:
        for (parent, kind), reference in edges.items():
            if parent != UNRESOLVED:
                continue
            if job_spec.meant_by(reference, self._names) and not index.meant_by(reference):
                continue  # the line with this name does not count yet
            is_cyclic = UNRESOLVED not in self._parents(index, stored.get(job_id, {}), job_id, reference)
            cause = "would make it wait for itself" if is_cyclic else "names no job"
            text = (
                f"line {index.lines[job_id].number}: job {job_id} cannot start, because"
                f" {kind.attribute}={reference} {cause}; correct the line"
            )
            if text not in self._reported:
                self._reported.add(text)
                yield text
