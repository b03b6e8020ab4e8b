"""Runs the program with a launch deadline of two seconds instead of ten, for small stress tests.

Usage: python -m tests.stress.short_deadlines COMMAND…, with the same arguments as `python -m gpu_scheduler`.
"""

from __future__ import annotations

import sys
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon import service

_real = service.run


def _run(options: StartOptions, **others: Any) -> int:
    return _real(replace(options, launch_deadline_s=2.0), **others)


if __name__ == "__main__":
    service.run = _run  # type: ignore[assignment]
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
