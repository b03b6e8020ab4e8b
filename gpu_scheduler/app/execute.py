"""Executes the command of `run` in this process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.app.claim_gpus import FoundGpus
from gpu_scheduler.app.gpu_source import GpuSource
from gpu_scheduler.gpus.probes.simulated_usage import FOLDER_VARIABLE

#: The signals that Python ignores. The command gets the default actions, as from any shell.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


class NotExecutedKind(str, Enum):
    """The kind of the reason why a command cannot be executed."""

    NOT_FOUND = "not found"
    SHELL_SYNTAX = "shell syntax"
    NO_INTERPRETER = "no interpreter"
    NO_FORMAT = "no format"
    REFUSED = "refused"


@dataclass(frozen=True)
class NotExecuted:
    """The reason why a command cannot be executed.

    reason: the message of the system. kind: SHELL_SYNTAX if there is no such program and the text is probably
    meant for a shell.
    """

    program: str
    reason: str
    kind: NotExecutedKind

    @property
    def is_missing(self) -> bool:
        """Whether there is no such program."""
        return self.kind in (NotExecutedKind.NOT_FOUND, NotExecutedKind.SHELL_SYNTAX)


def missing_program(program: str) -> NotExecuted | None:
    """Returns why a program cannot be executed, as far as this can be known before; None if it may work."""
    if shutil.which(program) is not None:
        return None
    number = errno.EISDIR if os.path.isdir(program) else errno.EACCES
    exists = shutil.which(program, os.F_OK) is not None or os.path.isdir(program)
    kind = NotExecutedKind.REFUSED if exists else _kind_of_missing(program)
    return NotExecuted(program, os.strerror(number), kind)


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
        reason = error.strerror if isinstance(error, OSError) else None
        return NotExecuted(words[0], reason or str(error), _kind_of(error, words[0]))


def _kind_of(error: Exception, program: str) -> NotExecutedKind:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        exists = shutil.which(program) is not None
        return NotExecutedKind.NO_INTERPRETER if exists else _kind_of_missing(program)
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return NotExecutedKind.NO_FORMAT
    return NotExecutedKind.REFUSED


def _kind_of_missing(program: str) -> NotExecutedKind:
    from gpu_scheduler.core.jobsfile.shell_syntax import BUILTINS, RESERVED

    is_for_shell = " " in program or "=" in program or program in (*BUILTINS, *RESERVED)
    return NotExecutedKind.SHELL_SYNTAX if is_for_shell else NotExecutedKind.NOT_FOUND
