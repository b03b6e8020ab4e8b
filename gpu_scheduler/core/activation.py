"""The shell text that deactivates what was active at the start of the scheduler, and activates a job's own.

Pure text for `command.sh`, which defines `fail`. Only conda itself knows how to undo what it did, so the text
asks it to: hooks run in the order in which `conda deactivate` runs them in a live shell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpu_scheduler.core.jobspec import JobSpec

#: A hook is read by this shell, and may end it: that is to be told. A subshell of a hook ends as it likes.
_EXIT = """\
exit() {{
    set -- "${{1-$?}}"
    [ "$BASH_SUBSHELL" -gt 0 ] || fail {named}": its hook ${{BASH_SOURCE[1]}} ended the shell (exit code $1)"
    builtin exit "$1"
}}
"""
_ACTIVE = '"conda environment ${CONDA_DEFAULT_ENV:-$CONDA_PREFIX}"'

#: What conda cannot undo (an environment that is damaged) is forgotten: the job's own can be activated then.
_LEAVE = """\
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

_CONDA = """\
{source}
type conda >/dev/null 2>&1 || fail {no_conda}
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
    [ -z "$known" ] || fail {broken}
    fail {missing}"${{names#, }}"
fi
unset -f exit
"""

_VENV = """\
unset CONDA_EXE CONDA_PYTHON_EXE _CE_CONDA _CE_M
[ -f {activate} ] || fail {missing}
{exit}unset VIRTUAL_ENV
VIRTUAL_ENV_DISABLE_PROMPT=1
. {activate}
unset VIRTUAL_ENV_DISABLE_PROMPT
[ -d "$VIRTUAL_ENV" ] || fail {broken}
unset -f exit
"""


@dataclass(frozen=True)
class Environment:
    """The conda or virtual environment of a job; both None: it runs in that of the scheduler.

    conda_sh: the file that defines `conda`, None where there is no conda.
    """

    conda: str | None
    venv: str | None
    conda_sh: str | None

    @property
    def named(self) -> str:
        """For messages."""
        if self.venv is not None:
            return f"virtual environment {self.venv}"
        return f"conda environment {self.conda}"

    @property
    def short(self) -> str:
        """For a heading."""
        if self.venv is not None:
            return f"venv {self.venv}"
        return "none named" if self.conda is None else f"conda {self.conda}"

    @property
    def programs(self) -> str | None:
        """Where its programs lie, as shell text that holds once it is active; None: on PATH."""
        if self.venv is not None:
            return '"$VIRTUAL_ENV"/bin'
        return None if self.conda is None else '"$CONDA_PREFIX"/bin'


def environment_of(spec: JobSpec, conda_sh: str | None) -> Environment:
    """Returns the environment that a job activates.

    An empty CSV field means base; a command without `conda=` names none.
    """
    base = spec.kind == "csv" and spec.venv is None and conda_sh is not None
    return Environment(spec.conda or ("base" if base else None), spec.venv, conda_sh)


def activation(of: Environment) -> str:
    """The text that activates it, or says why that cannot be."""
    if of.venv is not None:
        return _leave(of.conda_sh) + _venv(of)
    if of.conda is None:
        return ""
    if of.conda_sh is None:
        reason = f"{of.named}: no conda was found; name its profile.d/conda.sh by --conda-sh"
        return f"fail {shlex.quote(reason)}\n"
    return _leave(of.conda_sh) + _CONDA.format(
        source=_source(of.conda_sh),
        name=shlex.quote(of.conda),
        no_conda=shlex.quote(f"conda cannot be set up from {of.conda_sh}"),
        broken=shlex.quote(f"{of.named} could not be activated; its log says more"),
        missing=shlex.quote(f"{of.named} does not exist; environments: "),
    )


def _venv(of: Environment) -> str:
    return _VENV.format(
        activate=shlex.quote(f"{of.venv}/bin/activate"),
        exit=_EXIT.format(named=shlex.quote(of.named)),
        missing=shlex.quote(f"{of.named} does not exist (no bin/activate in it)"),
        broken=shlex.quote(f"{of.named} could not be activated; its log says more"),
    )


def _leave(conda_sh: str | None) -> str:
    """Without a conda nothing is active: `inherited` saw to that."""
    return "" if conda_sh is None else _EXIT.format(named=_ACTIVE) + _LEAVE.format(source=_source(conda_sh))


def _source(conda_sh: str) -> str:
    path = shlex.quote(conda_sh)
    return f"[ -r {path} ] && . {path}"
