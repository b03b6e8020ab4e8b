"""Generates the shell text that deactivates the scheduler's environment and activates the job's own.

The text is part of `command.sh`, which defines `fail`. Only conda can undo its own activation, so the text
calls `conda deactivate`. Hooks therefore run in the same order as in an interactive shell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpu_scheduler.core.model.job_spec import JobSpec

#: Replaces `exit`, so that a launch fails with a message if a hook that this shell sources calls `exit`. In a
#: subshell of a hook, `exit` works as usual.
_EXIT_HANDLER = """\
exit() {{
    set -- "${{1-$?}}"
    [ "$BASH_SUBSHELL" -gt 0 ] ||
        fail environment_broken {named}": its hook ${{BASH_SOURCE[1]}} ended the shell (exit code $1)"
    builtin exit "$1"
}}
"""
_ACTIVE_ENVIRONMENT = '"conda environment ${CONDA_DEFAULT_ENV:-$CONDA_PREFIX}"'

#: If conda cannot deactivate a damaged environment, only conda's own variables are unset, so that the job's
#: environment can still be activated.
_DEACTIVATE = """\
if [ -n "$CONDA_PREFIX" ]; then
    {source}
    while [ "${{CONDA_SHLVL:-0}}" -gt 0 ] 2>/dev/null; do
        set -- "$CONDA_SHLVL"
        type conda >/dev/null 2>&1 && conda deactivate
        [ "${{CONDA_SHLVL:-0}}" -lt "$1" ] && continue
        printf '%s\\n' "conda environment $CONDA_PREFIX cannot be deactivated; its variables may remain" >&2
        break
    done
fi
unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_PROMPT_MODIFIER CONDA_SHLVL
unset "${{!CONDA_PREFIX_@}}" "${{!CONDA_STACKED_@}}" "${{!__CONDA_SHLVL_@}}"
"""

_ACTIVATE_CONDA = """\
{source}
type conda >/dev/null 2>&1 || fail environment_broken {no_conda}
conda activate {name}
if [ $? -ne 0 ] || [ ! -d "$CONDA_PREFIX" ]; then
    names= known=
    while read -r first rest; do
        case $first in
            '' | '#'*) continue ;;
            {name}) known=yes ;;
        esac
        names="$names, $first"
    done < <(conda env list 2>/dev/null)
    [ -z "$known" ] || fail environment_broken {broken}
    fail environment_missing {missing}"${{names#, }}"
fi
unset -f exit
"""

_ACTIVATE_VENV = """\
unset CONDA_EXE CONDA_PYTHON_EXE _CE_CONDA _CE_M
[ -f {activate} ] || fail environment_missing {missing}
{exit}unset VIRTUAL_ENV
VIRTUAL_ENV_DISABLE_PROMPT=1
. {activate}
unset VIRTUAL_ENV_DISABLE_PROMPT
[ -d "$VIRTUAL_ENV" ] || fail environment_broken {broken}
unset -f exit
"""


@dataclass(frozen=True)
class JobEnvironment:
    """A job's conda or virtual environment; if both are None, the job runs in the scheduler's environment.

    conda_sh: the file that defines `conda`; None if there is no conda.
    """

    conda: str | None
    venv: str | None
    conda_sh: str | None

    @property
    def label(self) -> str:
        """The environment's name, for messages."""
        if self.venv is not None:
            return f"virtual environment {self.venv}"
        return f"conda environment {self.conda}"

    @property
    def heading(self) -> str:
        """The environment's short name, for a heading."""
        if self.venv is not None:
            return f"venv {self.venv}"
        return "none named" if self.conda is None else f"conda {self.conda}"

    @property
    def bin_folder(self) -> str | None:
        """The environment's program folder, as shell text that is valid after activation; None means PATH."""
        if self.venv is not None:
            return '"$VIRTUAL_ENV"/bin'
        return None if self.conda is None else '"$CONDA_PREFIX"/bin'


def environment_of(spec: JobSpec, conda_sh: str | None) -> JobEnvironment:
    """Returns the environment that a job activates.

    An empty environment field in a CSV line means conda's base environment, if there is one. A shell command
    without `conda=` or `venv=` activates none.
    """
    base = spec.kind == "csv" and spec.venv is None and conda_sh is not None
    return JobEnvironment(spec.conda or ("base" if base else None), spec.venv, conda_sh)


def activation_text(environment: JobEnvironment) -> str:
    """Returns the shell text that activates the environment, or fails with the reason why it cannot."""
    if environment.venv is not None:
        return _deactivation_text(environment.conda_sh) + _venv_text(environment)
    if environment.conda is None:
        return ""
    if environment.conda_sh is None:
        reason = f"{environment.label}: conda was not found; pass its profile.d/conda.sh with --conda-sh"
        return f"fail conda_missing {shlex.quote(reason)}\n"
    return _deactivation_text(environment.conda_sh) + _ACTIVATE_CONDA.format(
        source=_source_text(environment.conda_sh),
        name=shlex.quote(environment.conda),
        no_conda=shlex.quote(f"conda cannot be set up from {environment.conda_sh}"),
        broken=shlex.quote(f"{environment.label} could not be activated; see the log of the job"),
        missing=shlex.quote(f"{environment.label} does not exist; environments: "),
    )


def _venv_text(environment: JobEnvironment) -> str:
    return _ACTIVATE_VENV.format(
        activate=shlex.quote(f"{environment.venv}/bin/activate"),
        exit=_EXIT_HANDLER.format(named=shlex.quote(environment.label)),
        missing=shlex.quote(f"{environment.label} does not exist (no bin/activate in it)"),
        broken=shlex.quote(f"{environment.label} could not be activated; see the log of the job"),
    )


def _deactivation_text(conda_sh: str | None) -> str:
    """Returns the shell text that deactivates the active conda environment; "" if there is no conda.

    If there is no conda, `inherited_environment` has already removed the active environment.
    """
    return (
        ""
        if conda_sh is None
        else _EXIT_HANDLER.format(named=_ACTIVE_ENVIRONMENT)
        + _DEACTIVATE.format(source=_source_text(conda_sh))
    )


def _source_text(conda_sh: str) -> str:
    path = shlex.quote(conda_sh)
    return f"[ -r {path} ] && . {path}"
