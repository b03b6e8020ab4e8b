"""The command of an attempt: its environment, and the shell text that activates, checks and hands over.

Pure text. User text appears in it as single-quoted words only. The text speaks to descriptor 3: "." as its
last act before the job's own command, or "!" and the reason why it will not come to that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.core import cuda
from gpu_scheduler.core.environment import inherited
from gpu_scheduler.core.jobspec import CudaIds, JobSpec

__all__ = ["Command", "build", "conda_of", "shown"]

_HEAD = """\
# Job {job_id}, attempt {attempt}, as its runner starts it. By hand: bash command.sh
fail() {{ printf '%s\\n' "$1" >&2; {{ printf '!%s' "$1" >&3; }} 2>/dev/null; exit 1; }}
"""

_CONDA = """\
unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL
[ -r {conda_sh} ] && . {conda_sh}
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
"""

_VENV = """\
[ -f {activate} ] || fail {missing}
unset VIRTUAL_ENV
VIRTUAL_ENV_DISABLE_PROMPT=1
. {activate}
unset VIRTUAL_ENV_DISABLE_PROMPT
[ -d "$VIRTUAL_ENV" ] || fail {broken}
"""

_PYTHON = """\
if type -P python >/dev/null; then python=python; else python=python3; fi
type -P "$python" >/dev/null || fail 'neither python nor python3 is on the PATH of the job'
"""

#: torchrun starts python by its own interpreter and with -u. Its module is its program, one import away.
_TORCHRUN = """\
if type -P torchrun >/dev/null; then torchrun=(torchrun); else
    if type -P python >/dev/null; then python=python; else python=python3; fi
    torchrun=("$python" -u -m torch.distributed.run)
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
        fail 'torchrun is not on the PATH of the job, and its python has no torch'
fi
"""

#: Other names reach the job through its environment alone.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEGIN = "{ printf . >&3; } 2>/dev/null; exec 3>&-\n"


@dataclass(frozen=True)
class Command:
    """env: the whole environment; command_sh: the file's text; shown: the job's own command, for people."""

    env: dict[str, str]
    command_sh: str
    shown: str


def build(
    spec: JobSpec,
    gpus: Sequence[int],
    base_env: Mapping[str, str],
    token: str,
    job_id: int,
    attempt: int,
    conda_sh: str | None,
    cuda_ids_default: CudaIds,
    extra: Mapping[str, str] | None = None,
) -> Command:
    """What an attempt on these GPUs runs.

    base_env: the scheduler's own environment; extra: variables that the scheduler adds; conda_sh: the file
    that defines `conda`, None where there is no conda.
    """
    conda = conda_of(spec, conda_sh)
    own = {
        **dict(spec.env),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
    }
    marks = {
        "GPU_SCHEDULER_TOKEN": token,
        "GPU_SCHEDULER_JOB": str(job_id),
        "GPU_SCHEDULER_ATTEMPT": str(attempt),
    }
    replaced = conda is not None or spec.venv is not None
    env = {**inherited(base_env, replaced), **(extra or {}), **own, **marks}
    ids = cuda.ids_text(gpus, spec.cuda_ids or cuda_ids_default)
    shown, last = _work(spec, ids)
    unreachable = shlex.quote(f"working folder {spec.cwd} cannot be entered")
    parts = [
        _HEAD.format(job_id=job_id, attempt=attempt),
        "".join(f"export {name}={shlex.quote(own[name])}\n" for name in sorted(own) if _NAME.fullmatch(name)),
        f"cd -- {shlex.quote(spec.cwd)} || fail {unreachable}\n",
        _activation(spec, conda, conda_sh),
        last,
    ]
    return Command(env, "".join(parts), shown)


def shown(spec: JobSpec, ids: str) -> str:
    """The job's own command, for people. ids: what stands in it for the numbers of its GPUs."""
    return _work(spec, ids)[0]


def conda_of(spec: JobSpec, conda_sh: str | None) -> str | None:
    """The conda environment to activate. An empty CSV field means base; a command without `conda=` none."""
    if spec.conda:
        return spec.conda
    base = spec.kind == "csv" and spec.venv is None and conda_sh is not None
    return "base" if base else None


def _activation(spec: JobSpec, conda: str | None, conda_sh: str | None) -> str:
    if spec.venv is not None:
        return _VENV.format(
            activate=shlex.quote(f"{spec.venv}/bin/activate"),
            missing=shlex.quote(f"virtual environment {spec.venv} does not exist (no bin/activate in it)"),
            broken=shlex.quote(f"virtual environment {spec.venv} could not be activated; its log says more"),
        )
    if conda is None:
        return ""
    if conda_sh is None:
        reason = f"conda environment {conda}: no conda was found; name its profile.d/conda.sh by --conda-sh"
        return f"fail {shlex.quote(reason)}\n"
    return _CONDA.format(
        conda_sh=shlex.quote(conda_sh),
        name=shlex.quote(conda),
        no_conda=shlex.quote(f"conda cannot be set up from {conda_sh}"),
        broken=shlex.quote(f"conda environment {conda} could not be activated; its log says more"),
        missing=shlex.quote(f"conda environment {conda} does not exist; environments: "),
    )


def _work(spec: JobSpec, ids: str) -> tuple[str, str]:
    """What is shown of the job's own command, and the text that checks it and hands over to it."""
    if spec.kind == "csv":
        return _script(spec, spec.script or "", ids)
    command = cuda.in_command(spec.command or "", ids, spec.cuda or "rewrite")
    if command is None:
        reason = (
            f"cuda=add: no place for --cuda can be told in this command; write --cuda {ids} where it belongs"
        )
        return spec.command or "", f"fail {shlex.quote(reason)}\n"
    return command, f"{_BEGIN}exec bash -c {shlex.quote(command)}\n"


def _script(spec: JobSpec, script: str, ids: str) -> tuple[str, str]:
    """The same of a CSV line. With torchrun no `--cuda` is added: each process has its GPU by LOCAL_RANK."""
    missing = shlex.quote(f"script {script} does not exist")
    check = f"[ -e {shlex.quote(script)} ] || fail {missing}\n"
    if spec.torchrun is None:
        said = shlex.join(["-u", script, *cuda.in_arguments(spec.arguments, ids, spec.cuda or "add")])
        return f"python {said}", f'{check}{_PYTHON}{_BEGIN}exec "$python" {said}\n'
    flags = ["--standalone", "--nnodes=1", f"--nproc_per_node={spec.torchrun}"]
    said = shlex.join([*flags, script, *cuda.in_arguments(spec.arguments, ids, spec.cuda or "rewrite")])
    return f"torchrun {said}", f'{check}{_TORCHRUN}{_BEGIN}exec "${{torchrun[@]}}" {said}\n'
