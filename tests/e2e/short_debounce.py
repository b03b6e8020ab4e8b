"""Runs the command line, but accepts edits of the jobs file after shorter waits than usual."""

from __future__ import annotations

import sys

from gpu_scheduler.cli import main
from gpu_scheduler.core.jobsfile import debounce

if __name__ == "__main__":
    debounce.CHANGED_DELAY_S, debounce.REMOVED_DELAY_S = 0.5, 4.0
    sys.exit(main(sys.argv[1:]))
