"""The GPU time of a playback, hour by hour."""

from __future__ import annotations

from collections import deque

from gpu_scheduler.core.scheduling.actions import RecordGpuTime
from gpu_scheduler.core.scheduling.gpu_time import PERIOD_HOURS, GpuTime


class VirtualGpuTime:
    """GPU time that is added to what was counted until `wall`, which counts as of that hour.

    reserved_idle_s: all that was idle on reserved GPUs since then, in GPU-seconds.
    """

    def __init__(self, counted: GpuTime | None, wall: float) -> None:
        before = counted or GpuTime()
        self._hours = deque([(int(wall // 3600), before.delivered_s, before.reserved_idle_s)])
        self._total = GpuTime(before.delivered_s, before.reserved_idle_s, wall)
        self.reserved_idle_s = 0.0

    def total(self) -> GpuTime:
        """Returns the GPU time of the period that ends now."""
        return self._total

    def record(self, action: RecordGpuTime) -> GpuTime:
        """Adds GPU time, and returns that of the period that ends now."""
        self.reserved_idle_s += action.reserved_idle_s
        hour = int(action.until // 3600)
        delivered, idle = self._total.delivered_s, self._total.reserved_idle_s
        if self._hours and self._hours[-1][0] == hour:
            _, *before = self._hours.pop()
        else:
            before = [0.0, 0.0]
        self._hours.append((hour, before[0] + action.delivered_s, before[1] + action.reserved_idle_s))
        delivered, idle = delivered + action.delivered_s, idle + action.reserved_idle_s
        while self._hours[0][0] <= hour - PERIOD_HOURS:
            _, old_delivered, old_idle = self._hours.popleft()
            delivered, idle = delivered - old_delivered, idle - old_idle
        self._total = GpuTime(delivered, idle, action.until)
        return self._total
