"""Runs the command line for `python -m gpu_scheduler`, like scheduler.py and gpu-scheduler."""

from __future__ import annotations

import sys

from gpu_scheduler.cli import main

if __name__ == "__main__":
    sys.exit(main())
