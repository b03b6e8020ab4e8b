"""Checks the folder, the environment and the script of a job that waits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from gpu_scheduler.core.model.finding import Check, Finding, bad, ok
from gpu_scheduler.core.model.job_spec import JobSpec


def environment(spec: JobSpec, conda: str | None, conda_sh: str | None) -> Iterator[Finding]:
    """Yields findings about the working folder and the environment. conda: the environment to activate."""
    if not os.path.isdir(spec.cwd):
        yield bad(Check.FOLDER, f"{spec.cwd} does not exist", "create it, or name another with [cwd=DIR]")
    if spec.venv is not None:
        message = f"virtual environment {spec.venv}"
        if os.path.isfile(os.path.join(spec.venv, "bin", "activate")):
            yield ok(Check.ENVIRONMENT, message)
        else:
            missing = f"{message} does not exist (no bin/activate in it)"
            yield bad(Check.ENVIRONMENT, missing, "create it, or correct venv=")
    elif conda is None:
        yield ok(Check.ENVIRONMENT, "none named")
    elif conda_sh is None or not os.path.isfile(conda_sh):
        message = f"conda {conda}: no conda was found"
        yield bad(Check.ENVIRONMENT, message, "start --conda-sh PATH/profile.d/conda.sh")
    else:
        yield _conda(conda, conda_sh)


def _conda(name: str, conda_sh: str) -> Finding:
    from gpu_scheduler.health.doctor.conda import list_environments, parse_environments

    result = list_environments(conda_sh)
    if not result.succeeded:
        return bad(
            Check.ENVIRONMENT,
            f"`conda env list`: {result.failure_reason()}",
            f"run `. {conda_sh}; conda env list`",
        )
    known = parse_environments(result.output)
    if name in known or os.path.isdir(os.path.expanduser(name)):
        return ok(Check.ENVIRONMENT, f"conda {name} exists")
    return bad(
        Check.ENVIRONMENT,
        f"conda environment {name} does not exist; environments: {', '.join(known) or 'none'}",
        f"conda create -n {shlex.quote(name)}, or correct the line",
    )


def script(spec: JobSpec) -> Finding:
    """Returns whether the script of a CSV line exists; a command cannot be checked without running it."""
    path = spec.script
    if path is None:
        return ok(Check.SCRIPT, "a shell command; its programs are looked up only when it runs")
    if not os.path.exists(path):
        return bad(
            Check.SCRIPT, f"{path} does not exist", f"relative paths start at {spec.cwd}; correct the line"
        )
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return bad(Check.SCRIPT, f"{path} is a folder without __main__.py", "name a script")
    if not os.access(path, os.R_OK):
        return bad(Check.SCRIPT, f"{path} cannot be read", f"chmod u+r {shlex.quote(path)}")
    return ok(Check.SCRIPT, f"{path} (absolute)")
