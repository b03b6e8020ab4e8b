"""The public functions of the folder protocol: prepare a folder, observe it, signal and sweep.

Front ends use `observe` and `request_stop`, and `sweep` while no scheduler is running.
"""

from __future__ import annotations

from gpu_scheduler.attempts.folder_parsing import ResultFile, RunnerIdentity, StopFile
from gpu_scheduler.attempts.folder_status import (
    FolderStatus,
    kill_runner,
    observe,
    request_stop,
    void_claim,
    wake_runner,
)
from gpu_scheduler.attempts.prepare import is_prepared, is_usable, prepare
from gpu_scheduler.attempts.sweep import processes_of, recorded_command, sweep, sweep_once
from gpu_scheduler.runner.process_scan import shows_own_pids

__all__ = [
    "FolderStatus",
    "ResultFile",
    "RunnerIdentity",
    "StopFile",
    "is_prepared",
    "is_usable",
    "kill_runner",
    "observe",
    "prepare",
    "processes_of",
    "recorded_command",
    "request_stop",
    "shows_own_pids",
    "sweep",
    "sweep_once",
    "void_claim",
    "wake_runner",
]
