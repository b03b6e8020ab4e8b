"""The bash that runs a job's command, as far as its environment tells: its PATH and the functions in it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.core.linewarnings import JobShell

_FUNCTION, _END = "BASH_FUNC_", "%%"


def job_shell(env: Mapping[str, str]) -> JobShell | None:
    """The shell of jobs of a scheduler with this environment; None where bash reads a file of the user's
    first (BASH_ENV), or the PATH is not known. It remembers its answers: make a new one for a later look."""
    if env.get("BASH_ENV") or "PATH" not in env:
        return None
    folders = env["PATH"].split(os.pathsep)
    known: dict[tuple[str, str], bool] = {}

    def finds(name: str, cwd: str) -> bool:
        if (name, cwd) not in known:
            paths = (os.path.join(cwd, folder, name) for folder in folders)
            known[name, cwd] = os.path.exists(os.path.join(cwd, name)) or any(map(_is_program, paths))
        return known[name, cwd]

    names = (name.removeprefix(_FUNCTION).removesuffix(_END) for name in env if name.startswith(_FUNCTION))
    return JobShell(finds, frozenset(names))


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
