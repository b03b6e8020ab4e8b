"""Processes of attempts whose runner is gone, found and ended by the token in their environment.

One scan of /proc serves any number of attempts. The caller decides when to look again; `sweep` is for one
that may wait.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection

from gpu_scheduler.runner import tree

_LOOK_AGAIN_S = 0.05


def tokens_alive(tokens: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The pids of the living processes that carry each token; a token without any is left out."""
    return {token: tuple(sorted(found)) for token, found in tree.carriers(tokens).items()}


def sweep_once(token: str, sig: int) -> tuple[int, ...]:
    """Signal every process that carries the token, once. The pids that were found; empty = nothing is left.

    Never waits: call it again until it finds nothing. Kill a live runner first, this would reach it too.
    """
    found = tree.carriers((token,)).get(token, {})
    for pid, ticks in found.items():
        tree.send(pid, ticks, sig)
        if sig == signal.SIGTERM:
            tree.send(pid, ticks, signal.SIGCONT)
    return tuple(sorted(found))


def sweep(token: str, term_s: float = 2.0, deadline_s: float = 10.0) -> tuple[int, ...]:
    """SIGTERM, after `term_s` s SIGKILL, until a scan finds nothing or `deadline_s` is over. Survivors."""
    start = time.monotonic()
    found = sweep_once(token, signal.SIGTERM)
    while found and (passed := time.monotonic() - start) < deadline_s:
        time.sleep(_LOOK_AGAIN_S)
        # Signal 0 only looks: a handler that saves its work shall run once.
        found = sweep_once(token, signal.SIGKILL if passed >= term_s else 0)
    return found
