"""Derives a job's environment variables from those that it inherits, and finds conda.

There is no list of allowed variables, because users rely on HF_HOME, WANDB_API_KEY, LD_LIBRARY_PATH and many
more that no such list could cover.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

#: Variables that jobs do not inherit: those of the terminal, of another Python interpreter, of a surrounding
#: batch system and of the scheduler itself.
#: An inherited SHELLOPTS would give `pipefail` to every shell script.
_DENIED = re.compile(r"SHELLOPTS|STY|WINDOW|TERMCAP|COLUMNS|LINES|PYTHONHOME|SLURM_.*|GPU_SCHEDULER_.*")
#: Variables from which launchers of several processes take the port at which these meet; torchrun reads the
#: second. GIVEN_PORT tells a port that a scheduler gave to the surrounding job from one that the user chose.
PORT_VARIABLES, GIVEN_PORT = ("MASTER_PORT", "PET_MASTER_PORT"), "GPU_SCHEDULER_PORT"
_DEFAULT_PORT = 29500  # left to the jobs whose launchers ignore the variables
#: Variables that an active environment has set. Conda's own settings, such as CONDA_ENVS_PATH, belong to the
#: user and are not among them.
_ACTIVE_ENVIRONMENT = re.compile(r"VIRTUAL_ENV(_PROMPT)?|_CE_(CONDA|M)|CONDA_(PYTHON_)?EXE")
#: Variables that `conda deactivate` relies on.
_CONDA_STACK = re.compile(
    r"CONDA_(DEFAULT_ENV|PREFIX(_\d+)?|PROMPT_MODIFIER|SHLVL|STACKED_\d+)|__CONDA_SHLVL_\d+_.*"
)
_ENVIRONMENT_ROOT = re.compile(r"VIRTUAL_ENV|CONDA_PREFIX(_\d+)?")

_CONDA_SH = "etc/profile.d/conda.sh"
_INSTALLATIONS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "conda", "miniconda", "anaconda")


def inherited_environment(
    base: Mapping[str, str], replaces_active: bool, conda_available: bool
) -> dict[str, str]:
    """Returns the part of the variables of the scheduler, or of `submit`, that a job inherits.

    replaces_active: whether the job has its own conda or virtual environment. If so, the variables of the
    active environment are left out, and its folder is removed from PATH. conda_available: whether command.sh
    can deactivate the active environment with conda. If so, the variables that conda needs for this are kept.
    """
    given = {name for name in PORT_VARIABLES if base.get(name) == base.get(GIVEN_PORT)}
    env = {name: value for name, value in base.items() if not _DENIED.fullmatch(name) and name not in given}
    if not replaces_active:
        return env
    gone = {
        posixpath.join(value, "bin")
        for name, value in env.items()
        if _ENVIRONMENT_ROOT.fullmatch(name) and value
    }
    env = {name: value for name, value in env.items() if not _ACTIVE_ENVIRONMENT.fullmatch(name)}
    if not conda_available:
        env = {name: value for name, value in env.items() if not _CONDA_STACK.fullmatch(name)}
    if "PATH" in env:
        env["PATH"] = ":".join(part for part in env["PATH"].split(":") if part.rstrip("/") not in gone)
    return env


def ports_for(token: str, ephemeral: int) -> Iterator[int]:
    """Yields the ports that an attempt may get, beginning anywhere, so that schedulers rarely try the same.

    ephemeral: the first port that the kernel itself gives to programs. The ports are below it.
    """
    ports = range(10_000 if ephemeral > 11_000 else 1_024, ephemeral)
    for number in range(len(ports)):
        port = ports[(int(token[:8], 16) + number) % len(ports)]
        if port != _DEFAULT_PORT:
            yield port


def find_conda_sh(env: Mapping[str, str], exists: Callable[[str], bool]) -> str | None:
    """Finds the `conda.sh` of the conda installation that the variables indicate, or one in a usual folder.

    Tries CONDA_EXE, CONDA_PREFIX, `conda` on PATH and the usual folders, in this order. Returns None if none
    of them leads to a `conda.sh`.
    """
    roots: list[str] = []
    if env.get("CONDA_EXE"):
        roots.append(posixpath.dirname(posixpath.dirname(env["CONDA_EXE"])))
    if env.get("CONDA_PREFIX"):
        prefix = env["CONDA_PREFIX"].rstrip("/")
        # An environment is in the `envs` folder of its installation; the base environment is the installation
        # itself.
        roots += [prefix, posixpath.dirname(posixpath.dirname(prefix))]
    for folder in env.get("PATH", "").split(":"):
        if folder.startswith("/") and exists(posixpath.join(folder, "conda")):
            roots.append(posixpath.dirname(folder.rstrip("/")))
    places = [env["HOME"], posixpath.join(env["HOME"], "opt")] if env.get("HOME") else []
    roots += [
        posixpath.join(place, name) for place in [*places, "/opt", "/usr/local"] for name in _INSTALLATIONS
    ]
    return next((path for path in (posixpath.join(root, _CONDA_SH) for root in roots) if exists(path)), None)
