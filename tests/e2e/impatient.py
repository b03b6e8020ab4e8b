"""Runs the command line with shorter GPU polling intervals and timeouts."""

from __future__ import annotations

import sys

from gpu_scheduler import sampling
from gpu_scheduler.cli import main
from gpu_scheduler.probes import asked

if __name__ == "__main__":
    sampling.SAMPLE_EVERY_S = 0.3
    asked.DEADLINE_S = 3.0
    sys.exit(main(sys.argv[1:]))
