"""Keeps the pending groups in queue order and indexes their requests by size, from one round to the next.

With 10,000 different requests, sorting them and resolving their needs would take most of a round. A queue is
never changed: `updated` returns another one, which takes over what has not changed. The index is derived from
the groups, so a new queue with the same groups decides the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple, TypeAlias, overload

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.facts import Facts, Gpu, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, could_fit, resolve
from gpu_scheduler.core.scheduling.settings import Settings

# Orders waiting jobs by priority and queue position. Everything that reads the queue uses this order.


def queue_key(job: QueuedJob) -> tuple[int, int, int]:
    """Returns the key by which waiting jobs are sorted."""
    return job.priority, job.position, job.job_id


# Determines the current need of a job, with what was learned and with the options of the scheduler.


def need_of(resources: ResourceSpec, facts: Facts) -> Need:
    """Returns the current need of a job with these resources.

    Learned memory applies only if some GPU would still have room for another job. Otherwise the job counts as
    one that declares nothing.
    """
    need = resolve(resources, facts.config, facts.learned_mib)
    if resources.workload_class in facts.learned_mib and not _leaves_room(need, resources, facts):
        need = resolve(resources, facts.config)
    return replace(need, exclusive=True) if facts.settings.exclusive and need.count else need


def _leaves_room(need: Need, resources: ResourceSpec, facts: Facts) -> bool:
    limits = facts.settings
    beside = replace(limits, margin_mib=limits.margin_mib + limits.idle_threshold_mib)
    return any(
        could_fit(need, gpu.sample.total_mib if gpu.sample else None, beside)
        for gpu in allowed_gpus(resources, facts)
    )


def allowed_gpus(resources: ResourceSpec, facts: Facts) -> list[Gpu]:
    """Returns the managed GPUs that a job with these resources may use."""
    return [gpu for gpu in facts.gpus if resources.allowed is None or gpu.index in resources.allowed]


# Indexes the requests of the pending groups by size, so that a round finds those that may fit.
#
# Requests of one kind differ only in size: in memory or, if they declare none, in share. If a GPU accepts one
# of them, it accepts every smaller one of the kind too, whatever else is on it or is reserved there.


class RequestKind(NamedTuple):
    """All of a request but its size.

    gpus: the number of GPUs. share: 0 if the share is the size; has_vram: whether the memory is.
    """

    allowed: tuple[int, ...] | None
    gpus: int
    share: int
    alone: bool
    exclusive: bool
    has_vram: bool


class Request(NamedTuple):
    """The request of a pending group. size: MiB or, if it declares no memory, thousandths of a GPU."""

    need: Need
    kind: RequestKind
    size: int

    @classmethod
    def of(cls, need: Need, allowed: tuple[int, ...] | None) -> Request:
        """Returns the request for this need on these GPUs."""
        has_vram = need.vram is not None
        share = need.share if has_vram else 0
        kind = RequestKind(allowed, need.count, share, need.alone, need.exclusive, has_vram)
        return cls(need, kind, need.share if need.vram is None else need.vram)

    def with_size(self, size: int) -> Need:
        """Returns the need of a request of the same kind with another size."""
        return replace(self.need, vram=size) if self.kind.has_vram else replace(self.need, share=size)


#: The sizes of the requests of one kind in ascending order, each with the handle of its group.
_Sizes: TypeAlias = list[tuple[int, str]]
#: The learned memory by workload class, and the index and size of each GPU, which decide whether it applies.
_Learned: TypeAlias = tuple[Mapping[str, int], tuple[tuple[int, int | None], ...]]


@dataclass(frozen=True)
class RequestIndex:
    """The requests by the handle of the group, and their sizes by kind. It is never changed.

    preempting: the handles of the groups with the attribute `preempt`; learning: those of the groups whose
    needs depend on what was learned. config, settings, learned: that from which the needs were resolved.
    """

    requests: Mapping[str, Request]
    sizes: Mapping[RequestKind, _Sizes]
    preempting: frozenset[str]
    learning: frozenset[str]
    config: LlmConfig
    settings: Settings
    learned: _Learned

    @classmethod
    def of(cls, groups: Mapping[str, PendingGroup], facts: Facts) -> RequestIndex:
        """Returns the index of these groups."""
        empty = cls({}, {}, frozenset(), frozenset(), facts.config, facts.settings, _learned(facts))
        return empty._with(groups, facts)

    def updated(
        self, changes: Mapping[str, PendingGroup | None], groups: Mapping[str, PendingGroup], facts: Facts
    ) -> RequestIndex:
        """Returns the index after these changes of the groups and with the current needs.

        groups: all groups, with the changes.
        """
        if self.settings != facts.settings or self.config != facts.config:
            return RequestIndex.of(groups, facts)
        learned = _learned(facts)
        changed = {
            handle: group
            for handle, group in changes.items()
            if (group is None) == (handle in self.requests)  # the resources of a group never change
        }
        if learned != self.learned:
            changed |= {handle: groups.get(handle) for handle in self.learning}
        if not changed and learned == self.learned:
            return self
        return replace(self, learned=learned)._with(changed, facts)

    def _with(self, changes: Mapping[str, PendingGroup | None], facts: Facts) -> RequestIndex:
        requests, sizes = dict(self.requests), dict(self.sizes)
        copied: set[RequestKind] = set()

        def sizes_of(kind: RequestKind) -> _Sizes:
            if kind not in copied:
                sizes[kind] = list(sizes.get(kind, ()))
                copied.add(kind)
            return sizes[kind]

        for handle, group in changes.items():
            old = requests.pop(handle, None)
            if old is not None:
                listed = sizes_of(old.kind)
                del listed[bisect_left(listed, (old.size, handle))]
            if group is not None:
                new = Request.of(need_of(group.resources, facts), group.resources.allowed)
                requests[handle] = new
                insort(sizes_of(new.kind), (new.size, handle))
        for kind in copied:
            if not sizes[kind]:
                del sizes[kind]
        present = {handle: group for handle, group in changes.items() if group is not None}
        preempting = (handle for handle, group in present.items() if group.resources.preempt)
        learning = (handle for handle, group in present.items() if group.resources.workload_class is not None)
        return replace(
            self,
            requests=requests,
            sizes=sizes,
            preempting=_changed(self.preempting, changes, preempting),
            learning=_changed(self.learning, changes, learning),
        )


def _changed(before: frozenset[str], changes: Mapping[str, object], now: Iterable[str]) -> frozenset[str]:
    added = frozenset(now)
    return before.difference(changes) | added if before or added else before


def _learned(facts: Facts) -> _Learned:
    sizes = tuple((gpu.index, gpu.sample.total_mib if gpu.sample else None) for gpu in facts.gpus)
    return facts.learned_mib, sizes


class PendingQueue(Sequence[PendingGroup]):
    """The pending groups that wait for GPUs, in the order of their first jobs.

    groups: by handle, each with at least one job. The handle of a group is its spec key, unless several
    groups have the same resources. without_gpus: the groups whose jobs need no GPU; the sequence omits them.
    """

    def __init__(self, groups: Mapping[str, PendingGroup]) -> None:
        self.without_gpus = {handle: one for handle, one in groups.items() if not one.resources.needs_gpus}
        self._groups = {handle: one for handle, one in groups.items() if one.resources.needs_gpus}
        self._keys = {handle: queue_key(group.jobs[0]) for handle, group in self._groups.items()}
        self._order = sorted((key, handle) for handle, key in self._keys.items())
        self._without_reason = {handle for handle, group in self._groups.items() if group.reason is None}
        self._index: RequestIndex | None = None
        self._not_indexed: dict[str, PendingGroup | None] = {}

    @classmethod
    def of(cls, groups: Sequence[PendingGroup]) -> PendingQueue:
        """Returns these groups as a queue."""
        if isinstance(groups, cls):
            return groups
        found: dict[str, PendingGroup] = {}
        for number, group in enumerate(groups):
            key = group.resources.key()
            found[f"{key} {number}" if key in found else key] = group
        return cls({handle: group for handle, group in found.items() if group.jobs})

    def updated(self, changes: Mapping[str, PendingGroup | None]) -> PendingQueue:
        """Returns the queue after these changes, by handle. None removes a group."""
        new = object.__new__(PendingQueue)
        new.without_gpus = {handle: one for handle, one in self.without_gpus.items() if handle not in changes}
        new._groups, new._keys = dict(self._groups), dict(self._keys)
        new._order, new._without_reason = list(self._order), set(self._without_reason)
        new._index, new._not_indexed = self._index, dict(self._not_indexed)
        for handle, group in changes.items():
            if group is not None and not group.resources.needs_gpus:
                new.without_gpus[handle] = group
            else:
                new._not_indexed[handle] = group
                new._replace(handle, group)
        return new

    def _replace(self, handle: str, group: PendingGroup | None) -> None:
        self._groups.pop(handle, None)
        self._without_reason.discard(handle)
        before = self._keys.get(handle)
        after = None if group is None else queue_key(group.jobs[0])
        if before is not None and before != after:
            del self._keys[handle]
            del self._order[bisect_left(self._order, (before, handle))]
        if group is None or after is None:
            return
        self._groups[handle] = group
        if group.reason is None:
            self._without_reason.add(handle)
        if before != after:
            self._keys[handle] = after
            insort(self._order, (after, handle))

    def requests(self, facts: Facts) -> RequestIndex:
        """Returns the requests of the groups, with their current needs, by size."""
        if self._index is None:
            self._index = RequestIndex.of(self._groups, facts)
        else:
            self._index = self._index.updated(self._not_indexed, self._groups, facts)
        self._not_indexed = {}
        return self._index

    def group(self, handle: str) -> PendingGroup:
        """Returns the group with this handle."""
        return self._groups.get(handle) or self.without_gpus[handle]

    def key(self, handle: str) -> tuple[int, int, int]:
        """Returns the queue key of the first job of a group."""
        return self._keys[handle]

    def has_group(self, handle: str) -> bool:
        """Returns whether there is a group with this handle."""
        return handle in self._groups or handle in self.without_gpus

    def first(self, number: int) -> Iterator[str]:
        """Yields the handles of the first groups."""
        return (handle for _, handle in islice(self._order, number))

    def from_place(self, start: int, number: int) -> Iterator[str]:
        """Yields the handles of this many groups from a place on, and continues with the first ones."""
        for at in range(start, start + min(number, len(self._order))):
            yield self._order[at % len(self._order)][1]

    def up_to_priority(self, priority: int) -> Iterator[str]:
        """Yields the handles of the groups whose first job has at most this priority number."""
        for key, handle in self._order:
            if key[0] > priority:
                return
            yield handle

    def without_reason(self, number: int) -> list[str]:
        """Returns the handles of the first groups without a wait reason, at most this many."""
        return nsmallest(number, self._without_reason, key=self._keys.__getitem__)

    @cached_property
    def limited(self) -> list[ResourceSpec]:
        """The resources of the groups whose jobs have the attribute `max-running`."""
        every = (*self._groups.values(), *self.without_gpus.values())
        return [one.resources for one in every if one.resources.max_running is not None]

    def holding(self, job_id: int, spec_key: str) -> list[str]:
        """Returns the handles of the groups that hold a job with these resources."""
        likely = self._groups.get(spec_key)
        if likely is not None and any(job.job_id == job_id for job in likely.jobs):
            return [spec_key]
        return [
            handle
            for handle, group in self._groups.items()
            if handle.startswith(spec_key) and any(job.job_id == job_id for job in group.jobs)
        ]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[PendingGroup]:
        return (self._groups[handle] for _, handle in self._order)

    @overload
    def __getitem__(self, at: int) -> PendingGroup: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PendingGroup]: ...

    def __getitem__(self, at: int | slice) -> PendingGroup | Sequence[PendingGroup]:
        if isinstance(at, slice):
            return [self._groups[handle] for _, handle in self._order[at]]
        return self._groups[self._order[at][1]]


# Limits how many jobs of a group (attribute `max-running`) and jobs without a GPU run at the same time.
#
# Of the jobs of a group that run or wait only for GPUs, the smallest `max-running` counts. The jobs without a
# GPU are one more group, whose limit is `--cpu-jobs`. A job of a full group is passed over in every respect:
# it gets no GPUs and no reservation, and preempts no other job. A job for which GPUs are reserved counts as
# running, so that no other job of its group takes its place.


class GroupLimits:
    """The jobs of each group that run, or are about to in this round, and how many of them may."""

    def __init__(self, facts: Facts) -> None:
        running = [one.resources for one in facts.attempts if one.state.is_open]
        waiting = [one.resources for one in facts.reserved_jobs]
        self._most: dict[str | None, int] = {None: facts.settings.cpu_jobs}
        self._lower((*running, *waiting, *PendingQueue.of(facts.pending_groups).limited))
        self._taken = Counter(group for one in running for group in _groups_of(one))

    def _lower(self, every: Iterable[ResourceSpec]) -> None:
        for one in every:
            if one.group is not None and one.max_running is not None:
                self._most[one.group] = min(one.max_running, self._most.get(one.group, one.max_running))

    def refusal(self, resources: ResourceSpec) -> WaitReason | None:
        """Returns why no other job with these resources may run now; None if one may."""
        self._lower([resources])
        for group in _groups_of(resources):
            taken, most = self._taken[group], self._most.get(group)
            if most is not None and taken >= most:
                kind = WaitKind.CPU_JOBS_FULL if group is None else WaitKind.GROUP_FULL
                return WaitReason(kind, group or "", running=taken, max_running=most)
        return None

    def take(self, resources: ResourceSpec) -> None:
        """Counts one more job with these resources as running."""
        self._taken.update(_groups_of(resources))


def _groups_of(resources: ResourceSpec) -> list[str | None]:
    """Returns the groups in which a job with these resources counts; None: the jobs without a GPU."""
    groups: list[str | None] = [] if resources.group is None else [resources.group]
    return groups if resources.needs_gpus else [*groups, None]
