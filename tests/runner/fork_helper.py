"""Gives tests access to the helper process of a forking executor."""

from __future__ import annotations

from gpu_scheduler.attempts.executors import ForkingExecutor


def helper_pid(executor: ForkingExecutor) -> int | None:
    """Returns the pid of the helper, or None if the helper is not ready."""
    helper = executor._helper
    return helper.pid if helper is not None and helper.ready() else None
