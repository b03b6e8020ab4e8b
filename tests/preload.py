"""What the processes of tests/warm.py have imported before they begin."""

from __future__ import annotations

from importlib import import_module

import gpu_scheduler.service
from gpu_scheduler.cli import _MODULES

__all__ = ["gpu_scheduler"]

for _name in sorted(set(_MODULES.values())):
    import_module(f"gpu_scheduler.cli.{_name}")
