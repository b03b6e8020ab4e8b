"""Runs the program as usual, but kills it at one of its steps, for the stress test of dependencies.

Usage: python -m tests.stress.dying_scheduler COMMAND…, with the same arguments as `python -m gpu_scheduler`.

The environment variable DIES_AT is the number of the step; at 0, the program lives. There is a step before
and after each commit, and at each failpoint of the loop. Edits of the jobs file count sooner than usual. With
the environment variable IGNORES_PARENTS, a negative control, a round also starts jobs that wait for others.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.jobsfile import debounce
from gpu_scheduler.daemon import service
from gpu_scheduler.store import pending_groups
from tests.stress.commit_steps import step_at_commits

DIES_AT = "DIES_AT"
IGNORES_PARENTS = "IGNORES_PARENTS"

_left = int(os.environ.get(DIES_AT, "0"))
_pid = os.getpid()
_run = service.run


def _step(name: str = "") -> None:
    global _left
    if os.getpid() == _pid:
        _left -= 1
        if _left == 0:
            os.kill(_pid, signal.SIGKILL)


def _run_with_steps(options: StartOptions, **others: Any) -> int:
    return _run(replace(options, launch_deadline_s=2.0), _step, **others)


if __name__ == "__main__":
    service.run = _run_with_steps  # type: ignore[assignment]
    step_at_commits(_step)
    debounce.CHANGED_DELAY_S, debounce.LAST_LINE_DELAY_S, debounce.REMOVED_DELAY_S = 0.2, 0.5, 0.6
    if IGNORES_PARENTS in os.environ:
        in_queue, pending_groups._IN_QUEUE = pending_groups._IN_QUEUE, "state = 'queued' AND adopted IS NULL"
        pending_groups.IS_STARTABLE = pending_groups.IS_STARTABLE.replace(in_queue, pending_groups._IN_QUEUE)
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
