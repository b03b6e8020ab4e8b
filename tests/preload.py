"""Imports the modules that tests/warm.py loads before it forks processes."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import gpu_scheduler.daemon.service
from gpu_scheduler.cli.commands import COMMANDS

__all__ = ["gpu_scheduler"]

for _name in sorted({command.module for command in COMMANDS.values()}):
    import_module(f"gpu_scheduler.cli.{_name}")
with suppress(ImportError):  # the extras may be missing
    import redis as _redis  # noqa: F401
with suppress(ImportError):
    import uvicorn as _uvicorn  # noqa: F401

    import gpu_scheduler.web.app

gc.freeze()  # so that the garbage collector of a forked process does not visit, and thereby copy, all this
