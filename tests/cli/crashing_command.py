"""Runs a command that kills itself at a step of its rounds: -m tests.cli.crashing_command STEP WORD…"""

from __future__ import annotations

import os
import signal
import sys

from gpu_scheduler.cli import main
from gpu_scheduler.rounds import command


def die_at(deadly: str) -> None:
    """Kills this process when a round reaches a step."""

    def failpoint(step: str) -> None:
        if step == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    command.failpoint = failpoint


if __name__ == "__main__":
    die_at(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
