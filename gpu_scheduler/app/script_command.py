"""Determines the command that runs a submitted script, and finds the virtual environment of its folder."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_scheduler.app.line_note import Note, NoteKind
from gpu_scheduler.core.jobsfile.sbatch import ARRAY_INDEX, sbatch_options
from gpu_scheduler.core.jobsfile.shell_syntax import SHELL_ENDINGS
from gpu_scheduler.errors import UsageError

#: Number of bytes at the beginning of a script in which its `#SBATCH` lines are looked for.
_HEAD_BYTES = 64 * 1024
#: The files that make a folder a virtual environment which a job can activate.
_VENV_FILES = ("bin/python", "bin/activate")


def script_path(given: str, folder: str) -> str:
    """Returns the script as the job's folder names it. Raises UsageError if it is no file there.

    given: the path as the user wrote it, relative to the job's folder.
    """
    script = os.path.expanduser(given) if given.startswith("~/") else given
    path = os.path.join(folder, script)
    if os.path.isfile(path):
        return script
    problem = "is not a file" if os.path.exists(path) else "does not exist"
    here = os.path.abspath(script)
    if here != os.path.normpath(path) and os.path.isfile(here):
        hint = f"scripts are looked up in the job's folder; give the path {here}"
    else:
        hint = "put a command after `--`, as in `submit -- python train.py`"
    raise UsageError(f"SCRIPT {given}: {path} {problem}; {hint}")


def sbatch_attributes(
    script: str, folder: str, given: Mapping[str, str | bool | Sequence[str]], arguments: Sequence[str]
) -> tuple[dict[str, str], tuple[Note, ...]]:
    """Returns the attributes that the `#SBATCH` lines of a script set, and notes on all its options.

    given: the attributes of the command line, which win; arguments: those of the script. Raises UsageError
    for an array of jobs, unless an index is given.
    """
    try:
        with open(os.path.join(folder, script), "rb") as file:
            same, others, grid = sbatch_options(file.read(_HEAD_BYTES).decode(errors="replace"))
    except OSError:
        return {}, ()
    if grid and ARRAY_INDEX not in str(given.get("env")):
        named = {"name": same["name"], **given} if "name" in same else given
        values = ((key, [value] if isinstance(value, (str, bool)) else value) for key, value in named.items())
        own = [f"--{key}" if one is True else f"--{key}={one}" for key, some in values for one in some]
        words = ["submit", *grid, *own, script, *(["--", *arguments] if arguments else [])]
        raise UsageError(
            f"SCRIPT {script}: its #SBATCH --array means one job for each index; submit them with"
            f" `{shlex.join(words)}`"
        )
    won = {*given, "gpus"} if "share" in given else given
    used = {key: value for key, value in same.items() if key not in won}
    read = [f"{key}={value}" for key, value in used.items()]
    found = ((NoteKind.SBATCH_READ, read), (NoteKind.SBATCH_NOT_READ, others))
    return used, tuple(Note(kind, {"script": script, "options": tuple(some)}) for kind, some in found if some)


def is_python(script: str, python: str | None) -> bool:
    """Returns whether Python runs the script. python: the interpreter that the user chose, None if none."""
    return script.endswith(".py") or (python is not None and not script.endswith(SHELL_ENDINGS))


def script_command(script: str, folder: str, python: str | None) -> list[str]:
    """Returns the words that run a script in the job's folder, without its arguments.

    python: the interpreter for a Python script. Raises UsageError if it is unclear how to run the script.
    """
    if python is not None and is_python(script, python):
        return [python, "-u", script]
    if python is not None:
        raise UsageError(f"--python {python}: {script} is a shell script; leave out --python")
    if script.endswith(SHELL_ENDINGS):
        return ["bash", script]
    if not os.access(os.path.join(folder, script), os.X_OK):
        raise UsageError(
            f"SCRIPT {script}: ends in neither .py nor .sh and is not executable; make it executable"
            f" (`chmod +x {shlex.quote(script)}`), or put the whole command after `--`"
        )
    return [script if "/" in script else f"./{script}"]


def find_python(given: str, variables: Mapping[str, str]) -> str:
    """Returns the interpreter that --python names: an absolute path, or a name on PATH.

    Raises UsageError if there is no such program.
    """
    path = os.path.abspath(os.path.expanduser(given)) if "/" in given else given
    if shutil.which(path, path=variables.get("PATH", os.defpath)) is None:
        where = "is not an executable file" if "/" in given else "is not on PATH"
        raise UsageError(f"--python {given}: {path} {where}; give the path of a Python interpreter")
    return path


def default_python(variables: Mapping[str, str]) -> str:
    """Returns the name of the Python interpreter on PATH. Raises UsageError if there is none."""
    path = variables.get("PATH", os.defpath)
    found = next((name for name in ("python", "python3") if shutil.which(name, path=path)), None)
    if found is None:
        raise UsageError("neither python nor python3 is on PATH; name the interpreter with --python")
    return found


def nearest_venv(folder: str) -> Path | None:
    """Returns the virtual environment `.venv` in this folder or in the nearest folder above that has one."""
    return next(
        (venv for venv in _candidates(folder) if all((venv / one).exists() for one in _VENV_FILES)), None
    )


def _candidates(folder: str) -> Iterator[Path]:
    return (each / ".venv" for each in (Path(folder), *Path(folder).parents))


def is_trusted(venv: Path) -> bool:
    """Returns whether this user or root owns a virtual environment, so that its programs can be trusted."""
    return venv.stat().st_uid in (os.getuid(), 0)
