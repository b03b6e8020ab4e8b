"""Checks the software that the scheduler needs (Python, packages, conda), and the user that it runs as."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from gpu_scheduler import __version__
from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.health.doctor.conda import list_environments, parse_environments

#: The modules that the program imports, each with the package that provides it.
PACKAGES = {
    "GPUtil": "GPUtil",
    "pynvml": "nvidia-ml-py",
    "inotify_simple": "inotify_simple",
    "rich": "rich",
    "rich_argparse": "rich-argparse",
    "shtab": "shtab",
    **({"setuptools": "setuptools"} if sys.version_info >= (3, 12) else {}),
}
_MAX_ENVIRONMENTS = 12


def python() -> Finding:
    """Returns the finding about the interpreter, which runs the scheduler and its runners."""
    found = ".".join(map(str, sys.version_info[:3]))
    if not sys.executable:
        remedy = "run the program with a Python interpreter whose path can be determined"
        return bad(Check.PYTHON, f"{found}, but the path of the interpreter is unknown", remedy)
    return ok(Check.PYTHON, f"{found}, {sys.executable}")


def packages(wanted: Mapping[str, str] = PACKAGES) -> Finding:
    """Returns the finding about this package and its dependencies: their versions, or which are missing."""
    missing = [package for module, package in wanted.items() if find_spec(module) is None]
    if missing:
        return bad(Check.PACKAGES, f"missing: {', '.join(missing)}", "run `make install` or `pip install .`")
    found = ", ".join(f"{package} {_version(package)}" for package in wanted.values())
    return ok(Check.PACKAGES, f"gpu-scheduler {__version__}; {found}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown)"


def user(uid: int) -> Finding:
    """Returns the finding about the user that jobs run as."""
    if uid == 0:
        message = "root: anyone who can write to the jobs file can run commands as root"
        return warn(Check.USER, message, "run the scheduler as a dedicated user")
    return ok(Check.USER, f"uid {uid}")


def conda(conda_sh: str | None, is_named: bool) -> Iterator[Finding]:
    """Yields findings about conda.

    conda_sh: the path of conda's script, None if it was not found; is_named: whether --conda-sh named it.
    """
    if conda_sh is None:
        yield ok(Check.CONDA, "not found; jobs whose lines name no environment run without conda")
        return
    if not os.path.isfile(conda_sh):
        remedy = (
            "pass the installation's etc/profile.d/conda.sh to --conda-sh"
            if is_named
            else "install conda again"
        )
        yield bad(Check.CONDA, f"{conda_sh} does not exist", remedy)
        return
    result = list_environments(conda_sh)
    if not result.succeeded:
        remedy = f"run `. {shlex.quote(conda_sh)}; conda env list`"
        yield bad(Check.CONDA, f"{conda_sh}: `conda env list` failed: {result.failure_reason()}", remedy)
        return
    yield ok(Check.CONDA, f"{conda_sh}; environments: {_listed(parse_environments(result.output))}")


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MAX_ENVIRONMENTS} more" if len(every) > _MAX_ENVIRONMENTS else ""
    return ", ".join(every[:_MAX_ENVIRONMENTS]) + more if every else "none"
