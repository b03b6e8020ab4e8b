"""Counts the GPU time that attempts got, and that a reservation by queue order kept idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.units import WHOLE
from gpu_scheduler.core.scheduling.accounting import allocated_share
from gpu_scheduler.core.scheduling.actions import Action, RecordGpuTime

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Facts, Gpu

#: The period over which idle time is compared with delivered time, in hours.
PERIOD_HOURS = 168
#: GPU time is recorded at least this often, in seconds, and whenever allocations change.
_INTERVAL_S = 60.0
#: At least this much time counts as delivered, in GPU-seconds: in a new store, a few idle seconds would
#: otherwise exceed any fraction of what was delivered so far.
_MIN_DELIVERED_S = 3600.0


@dataclass(frozen=True)
class GpuTime:
    """GPU-seconds in the last PERIOD_HOURS.

    delivered_s: allocated to attempts; a half of a GPU counts half. reserved_idle_s: not allocated, on GPUs
    reserved by queue order. counted_until: the end of the counted time in wall seconds; None if nothing has
    been counted yet.
    """

    delivered_s: float = 0.0
    reserved_idle_s: float = 0.0
    counted_until: float | None = None

    def budget_left_s(self, idle_budget: float) -> float:
        """Returns for how many GPU-seconds reserved GPUs may still be idle; negative if it was too many.

        idle_budget: a fraction of the delivered time. At least one GPU-hour counts as delivered.
        """
        return idle_budget * max(self.delivered_s, _MIN_DELIVERED_S) - self.reserved_idle_s


def count_gpu_time(facts: Facts, *, allocations_change: bool) -> list[Action]:
    """Records the GPU time since it was last counted, if allocations change now or enough time has passed.

    While nothing is allocated or reserved, nothing needs to be recorded until an allocation changes.
    """
    counted = facts.gpu_time
    if counted is None:
        return []
    now = facts.now.wall
    if counted.counted_until is None or now < counted.counted_until:
        return [RecordGpuTime(0.0, 0.0, now)]  # begin to count; the clock may have been set back
    seconds = now - counted.counted_until
    if seconds < _INTERVAL_S and not (allocations_change and seconds > 0):
        return []
    reserved = () if facts.queue_reservation is None else facts.queue_reservation.gpus
    shares = {gpu.uuid: min(WHOLE, _allocated_share(gpu, facts)) for gpu in facts.gpus}
    delivered = sum(shares.values())
    idle = sum(WHOLE - share for uuid, share in shares.items() if uuid in reserved)
    if not (delivered or idle or allocations_change):
        return []
    return [RecordGpuTime(seconds * delivered / WHOLE, seconds * idle / WHOLE, now)]


def _allocated_share(gpu: Gpu, facts: Facts) -> int:
    total, spike = gpu.sample.total_mib if gpu.sample else None, facts.settings.spike_buffer
    holders = [one for one in facts.attempts if gpu.uuid in one.gpus and one.state.holds_gpus]
    return sum(allocated_share(one.allocation(gpu.uuid), total, spike) for one in holders)
