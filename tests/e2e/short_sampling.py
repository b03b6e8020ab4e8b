"""Runs the command line with shorter GPU polling intervals and timeouts than usual."""

from __future__ import annotations

import sys

from gpu_scheduler.cli import main
from gpu_scheduler.gpus import sampling
from gpu_scheduler.gpus.probes import probe_process

if __name__ == "__main__":
    sampling.SAMPLE_EVERY_S = 0.3
    probe_process.DEADLINE_S = 3.0
    sys.exit(main(sys.argv[1:]))
