"""Builds the command of an attempt: its environment variables, and the shell text of its `command.sh`.

The shell text activates the job's environment, checks the job's own command and executes it. Text from users
appears in it only as single-quoted words. The shell text reports to descriptor 3. It writes "." right before
it executes the job's own command; if it cannot execute the command, it writes "!", a FailureKind and the
reason. Before the ".", it writes the /proc entries of its process to descriptor 4, because the same process
then becomes the job's own command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.command import cuda
from gpu_scheduler.core.command.activation import JobEnvironment, activation_text, environment_of
from gpu_scheduler.core.command.environment import GIVEN_PORT, PORT_VARIABLES, inherited_environment
from gpu_scheduler.core.model.job_spec import CudaIds, CudaMode, JobSpec

_HEADER = """\
# Job {job_id}, attempt {attempt}. The runner executes this file. To run it by hand: bash command.sh
fail() {{ printf '%s\\n' "$2" >&2; {{ printf '!%s %s' "$1" "$2" >&3; }} 2>/dev/null; builtin exit 1; }}
"""

_FIND_PYTHON = """\
if type -P python >/dev/null; then python=python; else python=python3; fi
type -P "$python" >/dev/null || fail python_missing 'neither python nor python3 is on the PATH of the job'
"""

#: Searches only the environment's own folder, because a python elsewhere on PATH belongs to another
#: environment.
_FIND_ENVIRONMENT_PYTHON = """\
if [ -x {programs}/python ]; then python=python; else python=python3; fi
[ -x {programs}/"$python" ] || fail python_missing {missing}
"""

#: torchrun starts the script with torchrun's own Python interpreter and -u. If there is no torchrun, running
#: the module torch.distributed.run does the same.
_FIND_TORCHRUN = """\
if {there}; then torchrun=(torchrun); else
    torchrun=("$python" -u -m torch.distributed.run)
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null ||
        fail torchrun_missing {missing}
fi
"""

#: Names that a shell can export. Variables with other names reach the job only through its environment.
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Shell text that reports the start and then closes the descriptors. It starts no process, and works even if
#: an activation script has run `set -e`.
REPORT_START = """\
record() {
    local own
    mapfile -t own </proc/self/stat
    mapfile -t -O 1 own </proc/self/autogroup
    printf '%s\\n' "${own[@]}" >&4
}
{ record || :; printf . >&3; } 2>/dev/null; exec 3>&- 4>&-
"""


@dataclass(frozen=True)
class AttemptCommand:
    """The command of an attempt.

    env: all environment variables; command_sh: the content of that file; display_text: the job's own command,
    as shown to users; environment_label: the name of the conda or virtual environment, for a heading.
    """

    env: dict[str, str]
    command_sh: str
    display_text: str
    environment_label: str


def build_command(
    spec: JobSpec,
    gpus: Sequence[int],
    base_env: Mapping[str, str],
    token: str,
    job_id: int,
    attempt: int,
    conda_sh: str | None,
    cuda_ids_default: CudaIds,
    extra: Mapping[str, str] | None = None,
    port: int | None = None,
) -> AttemptCommand:
    """Builds the command of an attempt that uses these GPUs.

    base_env: the variables that the job inherits: those of the scheduler, or those with which the job was
    submitted; extra: variables that the scheduler adds; conda_sh: the file that defines `conda`; None if
    there is no conda. port: the port at which the job's processes meet, unless the variables give one.
    """
    environment = environment_of(spec, conda_sh)
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
    replaced = environment.bin_folder is not None
    env = {**inherited_environment(base_env, replaced, conda_sh is not None), **(extra or {}), **own, **marks}
    if port is not None and env.keys().isdisjoint(PORT_VARIABLES):
        env |= dict.fromkeys((*PORT_VARIABLES, GIVEN_PORT), str(port))
    ids = cuda.format_ids(gpus, spec.cuda_ids or cuda_ids_default)
    shown, last = _job_command(spec, ids, environment)
    unreachable = shlex.quote(f"working folder {spec.cwd} cannot be entered")
    # The line's variables are exported after activation, so that they override those of the environment. PATH
    # is exported before activation, which extends it.
    exports = [
        f"export {name}={shlex.quote(own[name])}\n" for name in sorted(own) if _SHELL_NAME.fullmatch(name)
    ]
    parts = [
        _HEADER.format(job_id=job_id, attempt=attempt),
        f"cd -- {shlex.quote(spec.cwd)} || fail cwd_unreachable {unreachable}\n",
        *(text for text in exports if text.startswith("export PATH=")),
        activation_text(environment),
        *(text for text in exports if not text.startswith("export PATH=")),
        last,
    ]
    return AttemptCommand(env, "".join(parts), shown, _environment_label(environment, base_env))


def display_command(spec: JobSpec, ids: str) -> str:
    """Returns the job's own command for display. ids: text to show in place of the job's GPU indices."""
    return _job_command(spec, ids, JobEnvironment(None, None, None))[0]


def _environment_label(environment: JobEnvironment, base_env: Mapping[str, str]) -> str:
    active = JobEnvironment(base_env.get("CONDA_DEFAULT_ENV"), base_env.get("VIRTUAL_ENV"), None)
    if environment.bin_folder is not None or active.bin_folder is None:
        return environment.heading
    return f"{environment.heading}, so the job uses the active one ({active.heading})"


def _job_command(spec: JobSpec, ids: str, environment: JobEnvironment) -> tuple[str, str]:
    """Returns the job's own command for display, and the text that checks and executes it."""
    if spec.kind == "csv":
        return _csv_command(spec, spec.script or "", ids, environment)
    command = cuda.rewrite_command(spec.command or "", ids, _cuda_mode(spec, "rewrite"))
    if command is None:
        reason = (
            "cuda=add: it is unclear where --cuda belongs in this command;"
            f" write --cuda {ids} where it belongs"
        )
        return spec.command or "", f"fail cuda_option_unplaced {shlex.quote(reason)}\n"
    option = "" if spec.pipefail == "off" else "-o pipefail "
    return command, f"{REPORT_START}exec bash {option}-c {shlex.quote(command)}\n"


def _cuda_mode(spec: JobSpec, default: CudaMode) -> CudaMode:
    """Returns how to handle --cuda. A job without a GPU gets no ids, so its command stays as it is."""
    return "off" if spec.gpus == 0 else spec.cuda or default


def _csv_command(spec: JobSpec, script: str, ids: str, environment: JobEnvironment) -> tuple[str, str]:
    """Returns the same as `_job_command`, but for a CSV line.

    torchrun gets no `--cuda`, because LOCAL_RANK selects the GPU of each process.
    """
    missing = shlex.quote(f"script {script} does not exist")
    check = f"[ -e {shlex.quote(script)} ] || fail script_missing {missing}\n{_python_check(environment)}"
    if spec.torchrun is None:
        rest = shlex.join(
            ["-u", script, *cuda.rewrite_arguments(spec.arguments, ids, _cuda_mode(spec, "add"))]
        )
        return f"python {rest}", f'{check}{REPORT_START}exec "$python" {rest}\n'
    flags = ["--standalone", "--nnodes=1", f"--nproc_per_node={spec.torchrun}"]
    rest = shlex.join([*flags, script, *cuda.rewrite_arguments(spec.arguments, ids, spec.cuda or "rewrite")])
    return (
        f"torchrun {rest}",
        f'{check}{_torchrun_check(environment)}{REPORT_START}exec "${{torchrun[@]}}" {rest}\n',
    )


def _python_check(environment: JobEnvironment) -> str:
    if environment.bin_folder is None:
        return _FIND_PYTHON
    missing = shlex.quote(f"{environment.label} has no python (neither bin/python nor bin/python3)")
    return _FIND_ENVIRONMENT_PYTHON.format(programs=environment.bin_folder, missing=missing)


def _torchrun_check(environment: JobEnvironment) -> str:
    if environment.bin_folder is None:
        missing = "torchrun is not on the PATH of the job, and its python has no torch"
        return _FIND_TORCHRUN.format(there="type -P torchrun >/dev/null", missing=shlex.quote(missing))
    missing = f"{environment.label} has neither torchrun nor torch"
    return _FIND_TORCHRUN.format(
        there=f"[ -x {environment.bin_folder}/torchrun ]", missing=shlex.quote(missing)
    )
