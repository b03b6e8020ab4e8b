"""Runs a scheduler that kills itself at a failpoint: python -m tests.loop.crashing STEP NTH [screen] [full].

With "full" it does not die. Instead, the step fails the first NTH times, as a write to a full disk does.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.scheduling import reconcile_attempt
from gpu_scheduler.daemon.service import run


def main(step: str, nth: int, screen: bool, full: bool) -> int:
    """Runs a draining scheduler, which dies when it reaches the step for the nth time."""
    left = nth

    def failpoint(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if full and left >= 0:
                raise sqlite3.OperationalError("database or disk is full")
            if not full and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    options = StartOptions(
        simulate="2", jobs_file="", screen=screen, drain=True, log_dir="logs", state_file="state.json",
        launch_deadline_s=0.75, max_launches=12, grace_s=1.0,
    )  # fmt: skip
    # A shorter timeout than usual keeps the tests fast.
    reconcile_attempt.RUNNER_OVERTIME_S = 1.0
    return run(options, failpoint)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), "screen" in sys.argv[3:], "full" in sys.argv[3:]))
