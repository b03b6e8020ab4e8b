"""Executes the command of `run` in this process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.app.claim_gpus import FoundGpus
from gpu_scheduler.app.gpu_source import GpuSource
from gpu_scheduler.gpus.probes.simulated_usage import FOLDER_VARIABLE

#: The signals that Python ignores. The command gets the default actions, as from any shell.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


@dataclass(frozen=True)
class NotExecuted:
    """The reason why a command cannot be executed. is_missing: whether there is no such program."""

    program: str
    reason: str
    is_missing: bool


def missing_program(program: str) -> NotExecuted | None:
    """Returns why a program cannot be executed, as far as this can be known before; None if it may work."""
    if shutil.which(program) is not None:
        return None
    exists = shutil.which(program, os.F_OK) is not None or os.path.isdir(program)
    reason = "Is a directory" if os.path.isdir(program) else "Permission denied"
    return NotExecuted(program, reason, is_missing=not exists)


def command_environment(found: FoundGpus, source: GpuSource, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a command that uses these GPUs. base: those of this process."""
    simulation = {} if source.simulation is None else {FOLDER_VARIABLE: os.path.abspath(source.simulation)}
    return {
        **base,
        **simulation,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.sample.index) for gpu in found.gpus),
    }


def execute(words: Sequence[str], env: Mapping[str, str]) -> NotExecuted:
    """Executes a command in this process. Returns only if that fails."""
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(words[0], list(words), env)
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        reason = error.strerror if isinstance(error, OSError) else None
        return NotExecuted(words[0], reason or str(error), is_missing)
