"""A sample of a GPU, together with the claims on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu import GpuSample
    from gpu_scheduler.core.model.gpu_claim import GpuClaim


@dataclass(frozen=True)
class ClaimedGpu:
    """A GPU and the claims of other programs on it.

    claims_problem: why the GPU cannot be claimed; "" if it can.
    """

    sample: GpuSample
    claims: tuple[GpuClaim, ...] = ()
    claims_problem: str = ""

    @property
    def free_mib(self) -> int | None:
        """The memory that no process uses, in MiB; None if unknown."""
        total, used = self.sample.total_mib, self.sample.used_mib
        return None if total is None or used is None else max(0, total - used)

    @property
    def unclaimed_mib(self) -> int | None:
        """The memory that no other program claims, in MiB; None if unknown."""
        if any(claim.mib is None for claim in self.claims):
            return 0
        total = self.sample.total_mib
        return None if total is None else max(0, total - sum(claim.mib or 0 for claim in self.claims))

    @property
    def available_mib(self) -> int | None:
        """The lesser of the free and the unclaimed memory, in MiB; None if the free memory is unknown."""
        free, unclaimed = self.free_mib, self.unclaimed_mib
        return free if free is None or unclaimed is None else min(free, unclaimed)
