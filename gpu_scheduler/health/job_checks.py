"""Checks the folder, the environment and the script of a waiting job, and asks conda for its environments."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from gpu_scheduler.core.command.build import find_conda_sh
from gpu_scheduler.core.model.finding import Finding, bad, ok
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.system.procfs import RunningProcess, read_running_process

_SUBMIT_AGAIN = "cancel the job and submit it again with another"


def environment(
    spec: JobSpec, conda: str | None, conda_sh: str | None, *, is_of_file: bool
) -> Iterator[Finding]:
    """Yields findings about a job's working folder and environment.

    conda: the conda environment that the job activates; conda_sh: the script that defines `conda`;
    is_of_file: whether the job has a line that the user can correct.
    """
    if not os.path.isdir(spec.cwd):
        other = "choose another with [cwd=DIR]" if is_of_file else _SUBMIT_AGAIN
        yield bad("folder", f"{spec.cwd} does not exist", f"create it, or {other}")
    if spec.venv is not None:
        message = f"virtual environment {spec.venv}"
        if os.path.isfile(os.path.join(spec.venv, "bin", "activate")):
            yield ok("environment", message)
        else:
            missing = f"{message} does not exist (it has no bin/activate)"
            other = "correct [venv=DIR] on the line" if is_of_file else _SUBMIT_AGAIN
            yield bad("environment", missing, f"create it, or {other}")
    elif conda is None:
        yield ok("environment", "the job names no environment")
    elif conda_sh is None or not os.path.isfile(conda_sh):
        message = f"the job needs the conda environment {conda}, but conda was not found"
        remedy = "pass the path of the installation's etc/profile.d/conda.sh to `start --conda-sh`"
        yield bad("environment", message, remedy)
    else:
        yield _conda(conda, conda_sh, "correct the line" if is_of_file else _SUBMIT_AGAIN)


def _conda(name: str, conda_sh: str, other: str) -> Finding:
    known = list_environments(conda_sh)
    if isinstance(known, str):
        return bad("environment", known, f"run `. {shlex.quote(conda_sh)}; conda env list`")
    if name in known or os.path.isdir(os.path.expanduser(name)):
        return ok("environment", f"conda environment {name} exists")
    message = f"conda environment {name} does not exist; environments: {', '.join(known) or 'none'}"
    remedy = f"create it (conda create -n {shlex.quote(name)}), or {other}"
    return bad("environment", message, remedy)


def script(spec: JobSpec) -> Finding:
    """Returns the finding about the script of a CSV line. A command cannot be checked without running it."""
    path = spec.script
    if path is None:
        return ok("script", "none; the programs in a shell command are not checked in advance")
    if not os.path.exists(path):
        remedy = f"correct the line; relative paths are looked up in {spec.cwd}"
        return bad("script", f"{path} does not exist", remedy)
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return bad("script", f"{path} is a folder without __main__.py", "name a script on the line")
    if not os.access(path, os.R_OK):
        return bad("script", f"{path} cannot be read", f"chmod u+r {shlex.quote(path)}")
    return ok("script", f"{path} exists")


# The conda that the next launch uses, and its environments.

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


def list_environments(conda_sh: str) -> list[str] | str:
    """Returns the environments that conda lists, or a text that says why it failed. Takes about a second.

    An environment without a name is listed with its folder.
    """
    from gpu_scheduler.system.run_program import run_program  # imports `subprocess`, which few commands need

    command = ["bash", "-c", '. "$1" && conda env list', "bash", conda_sh]
    result = run_program(command, timeout_s=_TIMEOUT_S)
    if not result.succeeded:
        return f"`conda env list` failed: {result.failure_reason()}"
    rows = (line.split() for line in result.output.splitlines())
    return [words[0] for words in rows if words and not words[0].startswith("#")]


def known_environments(conda_sh: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails."""
    found = list_environments(conda_sh)
    return None if isinstance(found, str) else found
