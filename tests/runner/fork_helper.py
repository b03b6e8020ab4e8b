"""The helper process of a forking executor, which no other part of the program needs to know."""

from __future__ import annotations

from gpu_scheduler.executors.forking import ForkingExecutor


def helper_pid(executor: ForkingExecutor) -> int | None:
    """Returns the pid of the helper; None until it is ready."""
    helper = executor._helper
    return helper.pid if helper is not None and helper.ready() else None
