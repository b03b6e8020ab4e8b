"""The GPUs that a command of `run` or `wait` needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuCriteria:
    """The number of GPUs to choose, and the conditions that each of them must meet.

    claim_mib: the memory to claim on each GPU, in MiB; None means the whole GPU. min_free_mib: the memory
    that must be free on each GPU, in MiB. max_load_percent: the highest utilization; None means any. only:
    the indices to choose from; None means all. excluded: the indices never to choose.
    """

    count: int = 1
    claim_mib: int | None = None
    min_free_mib: int = 0
    max_load_percent: float | None = None
    only: tuple[int, ...] | None = None
    excluded: tuple[int, ...] = ()

    @property
    def needed_mib(self) -> int:
        """The memory that each GPU must have, in MiB; 0 if any memory is enough."""
        return max(self.min_free_mib, self.claim_mib or 0)

    def allows(self, index: int) -> bool:
        """Returns whether the lists of GPUs allow the GPU with this index."""
        return index not in self.excluded and (self.only is None or index in self.only)
