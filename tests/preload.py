"""Imports the modules that tests/warm.py loads before it forks processes."""

from __future__ import annotations

from importlib import import_module

import gpu_scheduler.scheduler.service
from gpu_scheduler.cli.commands import COMMANDS

__all__ = ["gpu_scheduler"]

for _name in sorted({command.module for command in COMMANDS.values()}):
    import_module(f"gpu_scheduler.cli.{_name}")
