"""Reads the GPU time that attempts got, and that a reservation by queue order kept idle."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.gpu_time import PERIOD_HOURS, GpuTime
from gpu_scheduler.store.store import Store

#: The key in the table `meta` of the time in wall seconds until which GPU time has been counted.
COUNTED_UNTIL_KEY = "gpu_time_counted_until"


def gpu_time(store: Store, wall: float) -> GpuTime:
    """Returns the GPU time of the period that ends now. wall: the time in wall seconds."""
    row = store.db.row(
        "SELECT total(delivered_s) AS delivered_s, total(reserved_idle_s) AS idle_s,"
        " (SELECT value FROM meta WHERE key = ?) AS until FROM gpu_time WHERE hour > ?",
        COUNTED_UNTIL_KEY, int(wall // 3600) - PERIOD_HOURS,
    )  # fmt: skip
    assert row is not None
    return GpuTime(row["delivered_s"], row["idle_s"], None if row["until"] is None else float(row["until"]))


def skip_gpu_time(store: Store, wall: float) -> None:
    """Leaves out the time since it was last counted, because no scheduler was running."""
    store.db.set_meta(COUNTED_UNTIL_KEY, repr(wall), synced=False)
