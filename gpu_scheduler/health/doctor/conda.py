"""Lists conda's environments. The functions have their own module because they import `subprocess`."""

from __future__ import annotations

from gpu_scheduler.system.run_program import ProgramResult, run_program

#: Timeout in seconds of `conda env list`, which is a large Python program.
_TIMEOUT_S = 20.0


def list_environments(conda_sh: str) -> ProgramResult:
    """Runs `conda env list`. `parse_environments` parses the output."""
    return run_program(["bash", "-c", '. "$1" && conda env list', "bash", conda_sh], timeout_s=_TIMEOUT_S)


def parse_environments(text: str) -> list[str]:
    """Returns the environments in the output of `conda env list`: names, or the folders of unnamed ones."""
    rows = (line.split() for line in text.splitlines())
    return [words[0] for words in rows if words and not words[0].startswith("#")]


def known_environments(conda_sh: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails. This takes about a second."""
    result = list_environments(conda_sh)
    return parse_environments(result.output) if result.succeeded else None
