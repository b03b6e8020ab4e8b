"""Finds the conda that the next launch uses, and lists its environments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpu_scheduler.core.command.build import find_conda_sh
from gpu_scheduler.system.procfs import RunningProcess, read_running_process

if TYPE_CHECKING:
    from gpu_scheduler.system.run_program import ProgramResult

#: Timeout in seconds of `conda env list`, which is a large Python program.
_TIMEOUT_S = 20.0


def conda_sh_of(scheduler_pid: int | None, named: str | None) -> str | None:
    """Returns the `conda.sh` that the next launch uses; None if the scheduler would find no conda.

    scheduler_pid: the running scheduler, which searches with its own variables; if there is none, those of
    this process count. named: the value of `--conda-sh`.
    """
    process = read_running_process(scheduler_pid) if scheduler_pid and not named else None
    variables = process.environment if isinstance(process, RunningProcess) else os.environ
    return named or find_conda_sh(variables, os.path.exists)


def list_environments(conda_sh: str) -> ProgramResult:
    """Runs `conda env list`. `parse_environments` parses the output."""
    from gpu_scheduler.system.run_program import run_program  # imports `subprocess`, which few commands need

    return run_program(["bash", "-c", '. "$1" && conda env list', "bash", conda_sh], timeout_s=_TIMEOUT_S)


def parse_environments(text: str) -> list[str]:
    """Returns the environments in the output of `conda env list`: names, or the folders of unnamed ones."""
    rows = (line.split() for line in text.splitlines())
    return [words[0] for words in rows if words and not words[0].startswith("#")]


def known_environments(conda_sh: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails. This takes about a second."""
    result = list_environments(conda_sh)
    return parse_environments(result.output) if result.succeeded else None
