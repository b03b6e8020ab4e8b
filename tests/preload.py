"""Imports the modules that processes of tests/warm.py have in advance."""

from __future__ import annotations

from importlib import import_module

import gpu_scheduler.scheduler.service
from gpu_scheduler.cli import _MODULES

__all__ = ["gpu_scheduler"]

for _name in sorted(set(_MODULES.values())):
    import_module(f"gpu_scheduler.cli.{_name}")
