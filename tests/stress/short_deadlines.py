"""Runs the program with a launch deadline of two seconds instead of ten, for stress tests at small sizes.

Usage: python -m tests.stress.short_deadlines COMMAND…, as `python -m gpu_scheduler`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.scheduling.facts import Settings
from gpu_scheduler.scheduler import wiring

_real = wiring.settings_of


def _settings(options: StartOptions) -> Settings:
    return replace(_real(options), launch_deadline_s=2.0)


if __name__ == "__main__":
    wiring.settings_of = _settings
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
