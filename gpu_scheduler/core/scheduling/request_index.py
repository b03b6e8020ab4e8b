"""Indexes the requests of the pending groups by size, so that a round finds those that may fit.

Requests of one kind differ only in size: in memory or, if they declare none, in share. If a GPU accepts one
of them, it accepts every smaller one of the kind too, whatever else is on it or is reserved there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.scheduling.effective_need import need_of
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Settings


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
