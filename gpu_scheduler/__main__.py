"""Runs the command line for `python -m gpu_scheduler`, as scheduler.py and gpu-scheduler do."""

from __future__ import annotations

import sys

from gpu_scheduler.cli import main

if __name__ == "__main__":
    sys.exit(main())
