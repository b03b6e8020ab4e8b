"""Builds the command of an attempt: its environment variables, and the shell text of its `command.sh`.

The shell text activates the job's environment, checks the job's own command and executes it. Text from users
appears in it only as single-quoted words. The shell text reports to descriptor 3. It writes "." right before
it executes the job's own command; if it cannot execute the command, it writes "!", a FailureKind and the
reason. Before the ".", it writes the /proc entries of its process to descriptor 4, because the same process
then becomes the job's own command. This module also names the Screen session in which an attempt may run.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from gpu_scheduler.core.command.shell_words import format_cuda_ids, rewrite_arguments, rewrite_command
from gpu_scheduler.core.model.gpu import format_gpu_list
from gpu_scheduler.core.model.job_spec import CudaIds, CudaMode, JobSpec

# Derives a job's environment variables from those that it inherits, and finds conda.
#
# There is no list of allowed variables, because users rely on HF_HOME, WANDB_API_KEY, LD_LIBRARY_PATH and
# many more that no such list could cover.


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


# Generates the shell text that deactivates the scheduler's environment and activates the job's own.
#
# The text is part of `command.sh`, which defines `fail`. Only conda can undo its own activation, so the text
# calls `conda deactivate`. Hooks therefore run in the same order as in an interactive shell.


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
_ENVIRONMENT_NAME = '"conda environment ${CONDA_DEFAULT_ENV:-$CONDA_PREFIX}"'

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


class JobEnvironment(Struct, frozen=True):
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
    label, conda, venv, conda_sh = (
        environment.label,
        environment.conda,
        environment.venv,
        environment.conda_sh,
    )
    if venv is None and conda is None:
        return ""
    broken = shlex.quote(f"{label} could not be activated; see the log of the job")
    deactivation = source = ""  # without conda, `inherited_environment` has removed the active environment
    if conda_sh is not None:
        source = f"[ -r {shlex.quote(conda_sh)} ] && . {shlex.quote(conda_sh)}"
        deactivation = _EXIT_HANDLER.format(named=_ENVIRONMENT_NAME) + _DEACTIVATE.format(source=source)
    if venv is not None:
        return deactivation + _ACTIVATE_VENV.format(
            activate=shlex.quote(f"{venv}/bin/activate"),
            exit=_EXIT_HANDLER.format(named=shlex.quote(label)),
            missing=shlex.quote(f"{label} does not exist (no bin/activate in it)"),
            broken=broken,
        )
    if conda_sh is None:
        reason = f"{label}: conda was not found; pass its profile.d/conda.sh with --conda-sh"
        return f"fail conda_missing {shlex.quote(reason)}\n"
    return deactivation + _ACTIVATE_CONDA.format(
        source=source,
        name=shlex.quote(conda or ""),
        no_conda=shlex.quote(f"conda cannot be set up from {conda_sh}"),
        broken=broken,
        missing=shlex.quote(f"{label} does not exist; environments: "),
    )


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


class AttemptCommand(Struct, frozen=True):
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
    *,
    on_engine: bool = False,
) -> AttemptCommand:
    """Builds the command of an attempt that uses these GPUs.

    on_engine: whether an engine gives the attempt its GPUs, so that `gpus` only counts them.

    base_env: the variables that the job inherits: those of the scheduler, or those with which the job was
    submitted; extra: variables that the scheduler adds; conda_sh: the file that defines `conda`; None if
    there is no conda. port: the port at which the job's processes meet, unless the variables give one.
    """
    environment = environment_of(spec, conda_sh)
    own = {**dict(spec.env), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if not on_engine or not gpus:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    marks = {
        "GPU_SCHEDULER_TOKEN": token,
        "GPU_SCHEDULER_JOB": str(job_id),
        "GPU_SCHEDULER_ATTEMPT": str(attempt),
    }
    replaced = environment.bin_folder is not None
    env = {**inherited_environment(base_env, replaced, conda_sh is not None), **(extra or {}), **own, **marks}
    if on_engine and gpus:
        env.pop("CUDA_VISIBLE_DEVICES", None)  # the node's own value counts
    if port is not None and env.keys().isdisjoint(PORT_VARIABLES):
        env |= dict.fromkeys((*PORT_VARIABLES, GIVEN_PORT), str(port))
    ids = format_cuda_ids(gpus, "visible" if on_engine else spec.cuda_ids or cuda_ids_default)
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
    label = environment.heading
    active = JobEnvironment(base_env.get("CONDA_DEFAULT_ENV"), base_env.get("VIRTUAL_ENV"), None)
    if not replaced and active.bin_folder is not None:
        label += f", so the job uses the active one ({active.heading})"
    return AttemptCommand(env, "".join(parts), shown, label)


def display_command(spec: JobSpec, ids: str) -> str:
    """Returns the job's own command for display. ids: text to show in place of the job's GPU indices."""
    return _job_command(spec, ids, JobEnvironment(None, None, None))[0]


def _job_command(spec: JobSpec, ids: str, environment: JobEnvironment) -> tuple[str, str]:
    """Returns the job's own command for display, and the text that checks and executes it."""
    if spec.kind == "csv":
        return _csv_command(spec, spec.script or "", ids, environment)
    command = rewrite_command(spec.command or "", ids, _cuda_mode(spec, "rewrite"))
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
    label, programs = environment.label, environment.bin_folder
    missing = shlex.quote(f"script {script} does not exist")
    check = f"[ -e {shlex.quote(script)} ] || fail script_missing {missing}\n"
    if programs is None:
        check += _FIND_PYTHON
        there = "type -P torchrun >/dev/null"
        no_torch = "torchrun is not on the PATH of the job, and its python has no torch"
    else:
        missing = shlex.quote(f"{label} has no python (neither bin/python nor bin/python3)")
        check += _FIND_ENVIRONMENT_PYTHON.format(programs=programs, missing=missing)
        there, no_torch = f"[ -x {programs}/torchrun ]", f"{label} has neither torchrun nor torch"
    if spec.torchrun is None:
        rest = shlex.join(["-u", script, *rewrite_arguments(spec.arguments, ids, _cuda_mode(spec, "add"))])
        return f"python {rest}", f'{check}{REPORT_START}exec "$python" {rest}\n'
    flags = ["--standalone", "--nnodes=1", f"--nproc_per_node={spec.torchrun}"]
    rest = shlex.join([*flags, script, *rewrite_arguments(spec.arguments, ids, spec.cuda or "rewrite")])
    check += _FIND_TORCHRUN.format(there=there, missing=shlex.quote(no_torch))
    return f"torchrun {rest}", f'{check}{REPORT_START}exec "${{torchrun[@]}}" {rest}\n'


# Names the Screen session of a job, and parses the list of sessions.


#: Maximum length of a session name. Screen silently fails to bind the socket of a longer one.
MAX_SESSION_NAME = 40


def session_name(gpus: Sequence[int], mode: str, job_id: int) -> str:
    """Returns `gpujob_<gpu_ids>_<mode>_<job_id>`: letters, digits and `_ - , .`, at most 40 characters.

    The mode is truncated to fit, but the GPU ids never are. If the ids of many GPUs are too long, they are
    written as ranges ("0-7"); if the ranges are too long as well, only the first id and the number of GPUs
    are written ("0.x16"). Without GPUs, they are "cpu".
    """
    word = re.sub(r"[^A-Za-z0-9_.,-]", "-", mode) or "job"
    room = MAX_SESSION_NAME - len(f"gpujob___{job_id}")
    if not gpus:
        return f"gpujob_cpu_{word[: room - 3]}_{job_id}"
    texts = (",".join(map(str, gpus)), format_gpu_list(gpus), f"{min(gpus)}.x{len(gpus)}")
    ids = next((text for text in texts if len(text) < room), texts[-1])
    return f"gpujob_{ids}_{word[: max(0, room - len(ids))]}_{job_id}"


_SESSION = re.compile(r"^[ \t]+(?P<name>[0-9]+\.\S+)[ \t].*\((?P<state>[^()]*)\)[ \t]*$", re.MULTILINE)
_FOLDER = re.compile(r"(?:[Ss]ockets? (?:found )?in) (/.*?)\.?\s*$")


class SessionList(Struct, frozen=True):
    """The sessions in the output of `screen -ls`, without those that Screen itself marks as dead.

    folder: the socket folder; None if the output does not name it. attached: for each session, by its
    `pid.name`, whether a terminal is attached to it.
    """

    folder: str | None = None
    attached: Mapping[str, bool] = field(default_factory=dict)


def parse_session_list(text: str) -> SessionList:
    """Parses the output of `screen -ls`.

    The list is for display only, because `screen -ls` can omit new sessions and show dead ones.
    """
    folder = _FOLDER.search(text.strip())
    states = {found["name"]: found["state"].lower() for found in _SESSION.finditer(text)}
    return SessionList(
        folder[1] if folder else None,
        {
            name: "attached" in state
            for name, state in states.items()
            if state.endswith(("attached", "detached", "private"))
        },
    )
