"""The public functions of the folder protocol: prepare a folder, observe it, signal and sweep.

Front ends use `observe` and `request_stop`, and `sweep` while no scheduler is running.
"""

from __future__ import annotations

from gpu_scheduler.runner.observe import (
    FolderStatus,
    kill_runner,
    wake_runner,
    observe,
    request_stop,
    void_claim,
)
from gpu_scheduler.runner.parsing import RunnerIdentity, ResultFile, StopFile
from gpu_scheduler.runner.prepare import is_prepared, is_usable, prepare
from gpu_scheduler.runner.sweep import processes_of, recorded_command, sweep, sweep_once
from gpu_scheduler.runner.tree import shows_own_pids

__all__ = [
    "RunnerIdentity",
    "FolderStatus",
    "ResultFile",
    "StopFile",
    "is_prepared",
    "is_usable",
    "kill_runner",
    "wake_runner",
    "observe",
    "prepare",
    "processes_of",
    "recorded_command",
    "request_stop",
    "shows_own_pids",
    "sweep",
    "sweep_once",
    "void_claim",
]
