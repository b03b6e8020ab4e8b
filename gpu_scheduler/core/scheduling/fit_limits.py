"""Finds the largest request of each kind that may fit now, so that larger ones are not asked for at all.

A limit comes from the share and the memory left on each GPU. Where something else keeps a request off, such
as a reservation or foreign use, a binary search among the sizes asks the placement itself. During a round,
GPUs are only given away, so a limit that was found remains an upper limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from gpu_scheduler.core.model.units import WHOLE
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, headroom_mib
from gpu_scheduler.core.scheduling.request_index import Request, RequestIndex, RequestKind
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.settings import Limits

#: The limit if no request fits, and if there is no limit.
_NONE, _ALL = -1, 1 << 62


class FitLimits:
    """The limits for the requests in an index on these GPUs."""

    def __init__(self, index: RequestIndex, gpus: RoundAllocations, limits: Limits) -> None:
        self._index = index
        self._gpus = gpus
        self._limits = limits
        self._refused: dict[tuple[RequestKind, bool], int] = {}
        self.gpus_changed()

    def gpus_changed(self) -> None:
        """Computes the limits again, because GPUs were given away."""
        self._free: dict[RequestKind, int] = {}
        self._seen_to_fit: dict[RequestKind, int] = {}
        self._views = [view for view in self._gpus.current() if _accepts_any(view)]
        self._largest = {
            True: max((headroom_mib(view, self._limits) or 0 for view in self._views), default=_NONE),
            False: max((WHOLE - view.allocated_share for view in self._views), default=_NONE),
        }

    def may_fit(self, request: Request, *, ends_in_time: bool = True) -> bool:
        """Returns whether a request may fit. ends_in_time: see `RoundAllocations.ends_in_time`."""
        return request.size <= self._limit(request.kind, ends_in_time)

    def may_fit_handles(self) -> Iterator[str]:
        """Yields the handles of the groups whose requests may fit."""
        for kind, sizes in self._index.sizes.items():
            if sizes[0][0] <= self._largest[kind.has_vram]:
                for _, handle in sizes[: self._number(kind)]:
                    yield handle

    def number(self) -> int:
        """Returns the number of groups whose requests may fit."""
        return sum(
            self._number(kind)
            for kind, sizes in self._index.sizes.items()
            if sizes[0][0] <= self._largest[kind.has_vram]
        )

    def refused(self, request: Request, *, ends_in_time: bool) -> None:
        """Lowers the limit, because the placement has refused a request."""
        if not ends_in_time and self._seen_to_fit.get(request.kind, _NONE) < request.size <= self._limit(
            request.kind, True
        ):
            if self._fits(request, request.size, True):
                self._seen_to_fit[request.kind] = request.size
            else:
                self.refused(request, ends_in_time=True)
        if not self.may_fit(request, ends_in_time=ends_in_time):
            return
        sizes = self._index.sizes[request.kind]
        smaller = range(bisect_left(sizes, (request.size,)))
        fit = bisect_left(smaller, True, key=lambda at: not self._fits(request, sizes[at][0], ends_in_time))
        self._refused[request.kind, ends_in_time] = sizes[fit - 1][0] if fit else _NONE

    def _fits(self, request: Request, size: int, ends_in_time: bool) -> bool:
        upper_s = 0.0 if ends_in_time else float("inf")
        answer = self._gpus.place(request.with_size(size), request.kind.allowed, upper_s)
        return not isinstance(answer, WaitReason)

    def _number(self, kind: RequestKind) -> int:
        return bisect_left(self._index.sizes[kind], (self._limit(kind, True) + 1,))

    def _limit(self, kind: RequestKind, ends_in_time: bool) -> int:
        limit = min(self._free_size(kind), self._refused.get((kind, True), _ALL))
        return limit if ends_in_time else min(limit, self._refused.get((kind, False), _ALL))

    def _free_size(self, kind: RequestKind) -> int:
        if kind not in self._free:
            found = [self._size_left(view, kind) for view in self._views if _is_usable(view, kind)]
            found.sort(reverse=True)
            self._free[kind] = found[kind.gpus - 1] if kind.gpus <= len(found) else _NONE
        return self._free[kind]

    def _size_left(self, view: GpuAvailability, kind: RequestKind) -> int:
        if not kind.has_vram:
            return WHOLE - view.allocated_share
        # The share that memory amounts to may exceed a GPU, and keeps off only requests for a share.
        if kind.share and view.allocated_share + kind.share > WHOLE:
            return _NONE
        headroom = headroom_mib(view, self._limits)
        return _NONE if headroom is None else headroom


def _accepts_any(view: GpuAvailability) -> bool:
    return view.unavailable is None and view.claims_problem is None and view.foreign_mib is not None


def _is_usable(view: GpuAvailability, kind: RequestKind) -> bool:
    is_allowed = kind.allowed is None or view.index in kind.allowed
    return is_allowed and not (view.occupied and (kind.alone or kind.exclusive))
