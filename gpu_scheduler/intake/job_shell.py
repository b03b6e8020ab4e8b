"""Describes the bash that runs a job's command by its environment: its PATH and exported functions."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.core.jobsfile.line_warnings import JobShell

_FUNCTION, _END = "BASH_FUNC_", "%%"


def job_shell(env: Mapping[str, str]) -> JobShell | None:
    """Returns the shell of the jobs of a scheduler with this environment.

    None if bash first sources a file of the user (BASH_ENV), or the PATH is unknown. The result caches its
    lookups: create a new one for a later check.
    """
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
