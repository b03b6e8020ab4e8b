"""Runs the command line, but tries a failed job again after one second instead of ten."""

from __future__ import annotations

import sys

from gpu_scheduler.cli import main
from gpu_scheduler.core.scheduling import attempt_end

if __name__ == "__main__":
    attempt_end.FIRST_WAIT_S = 1.0
    sys.exit(main(sys.argv[1:]))
