"""Composes the line of a new job from option values, checks it, and finds reasons why its job may not run.

The checks use what the store records about the machine on which the line will run: `recorded_setting`.
`add` appends the line to a jobs file, and `submit` inserts its job into the store.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from gpu_scheduler.config import JOBS_FILE, StartOptions
from gpu_scheduler.control.line_note import LineNote, Note, NoteKind
from gpu_scheduler.core.command.build import display_command, environment_of
from gpu_scheduler.core.command.shell_words import program_folder
from gpu_scheduler.core.jobsfile import compose
from gpu_scheduler.core.jobsfile.attributes import ATTRIBUTES
from gpu_scheduler.core.jobsfile.compose import ARRAY_INDEX, sbatch_options
from gpu_scheduler.core.jobsfile.job_line import (
    OR_BACKGROUND,
    SHELL_ENDINGS,
    background_work,
    needs_bash,
    parse_csv,
)
from gpu_scheduler.core.jobsfile.reading import JobShell, line_warnings
from gpu_scheduler.core.model.job_spec import LOCAL, NORMAL_PRIORITY, NOT_ON_ENGINES, JobSpec, Need
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, resolve
from gpu_scheduler.core.scheduling.placement import could_fit
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.health.job_checks import conda_sh_of, known_environments
from gpu_scheduler.intake.jobs_file_text import job_shell, parse_job_line
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.jobs_files import find_jobs_file
from gpu_scheduler.system import safe_file


class RecordedSetting(Struct, frozen=True):
    """The GPUs and the scheduler of a store. Without a readable store, all values are the defaults.

    known_gpus: the indices of the GPUs, None if unknown; cwd: the folder in which the lines of the jobs file
    run, None if unknown; totals_mib: the memory of each GPU whose size is known, by index; options: the
    newest scheduler's options, None if unknown; scheduler_pid: the pid of the running scheduler; jobs_file:
    the file with the lines, "" if there is none.
    """

    known_gpus: frozenset[int] | None = None
    cwd: str | None = None
    totals_mib: Mapping[int, int] = field(default_factory=dict)
    options: StartOptions | None = None
    scheduler_pid: int | None = None
    jobs_file: str = ""

    @property
    def folder(self) -> str:
        """The folder in which the lines run or, if unknown, the current one."""
        return self.cwd or os.getcwd()

    @property
    def conda_sh(self) -> str | None:
        """The file that defines `conda`; None if conda was not found."""
        return conda_sh_of(self.scheduler_pid, self.options.conda_sh if self.options else None)

    def context(
        self, config: LlmConfig, conda_sh: str | None, conda_envs: Collection[str] | None
    ) -> PreviewContext:
        """Returns what a line is checked against on this machine."""
        limits, shell = self.options or Limits(), job_shell(os.environ)
        return PreviewContext(
            config, self.known_gpus, conda_sh, os.path.exists, conda_envs, self.totals_mib, limits, shell,
            self.options.on if self.options else LOCAL,
        )  # fmt: skip


def recorded_setting(location: Location, jobs_file: str | None) -> RecordedSetting:
    """Returns the recorded setting for the lines of a jobs file.

    jobs_file: its absolute path; None means the file that the running scheduler watches, or jobs.txt here.
    """
    here = os.path.abspath(JOBS_FILE) if jobs_file is None else jobs_file
    try:
        with open_store(location, read_only=True) as store:
            options, pid = store.recorded_options(), scheduler_pid_of(store)
            path = options.jobs_file if jobs_file is None and pid is not None else here
            file = find_jobs_file(store, path)
            return RecordedSetting(
                frozenset(store.gpu_indices().values()) or None,
                None if file is None else file.cwd,
                {gpu.index: gpu.total_mib for gpu in store.gpus() if gpu.total_mib is not None},
                options,
                pid,
                path,
            )
    except SchedulerError:
        return RecordedSetting(jobs_file=here)


# Previews the job that a line of a jobs file would create.


#: The placeholder in a command for the indices of the GPUs that the job will get.
GPU_IDS_PLACEHOLDER = "IDS"

_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*")


class PreviewContext(Struct, frozen=True):
    """The machine and the options against which a line is checked.

    known_gpus: the indices of the existing GPUs, None if unknown; conda_sh: the file that defines `conda`,
    None if conda was not found; path_exists: returns whether a file or folder exists; conda_envs: the names
    of the environments, None if unknown; totals_mib: the memory of each GPU whose size is known, by index;
    limits: the scheduler's limits; shell: the shell of its jobs, None if unknown; on: where jobs run whose
    lines do not say so.
    """

    config: LlmConfig
    known_gpus: Collection[int] | None
    conda_sh: str | None
    path_exists: Callable[[str], bool]
    conda_envs: Collection[str] | None = None
    totals_mib: Mapping[int, int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shell: JobShell | None = None
    on: str = LOCAL


class Preview(Struct, frozen=True):
    """The preview of a well-formed line.

    conda: the environment that the job activates, None if it activates none; duplicate_of: the number of the
    earlier line with the same job, None if there is none; warnings: reasons why the job may not run, or not
    as the user expects; engine: the engine on which it runs, None for this machine.
    """

    number: int
    spec: JobSpec
    need: Need
    priority: int
    conda: str | None
    command: str
    duplicate_of: int | None
    notes: tuple[LineNote, ...]
    warnings: tuple[LineNote, ...]
    engine: str | None = None


def preview(
    number: int, spec: JobSpec, notes: tuple[str, ...], duplicate_of: int | None, context: PreviewContext
) -> Preview:
    """Returns the need, the command and the warnings for a line. notes: the parser's messages about it."""
    need = resolve(ResourceSpec.of(spec), context.config)
    return Preview(
        number,
        spec,
        need,
        NORMAL_PRIORITY if spec.priority is None else spec.priority,
        environment_of(spec, context.conda_sh).conda,
        display_command(spec, GPU_IDS_PLACEHOLDER),
        duplicate_of,
        (*notes, *_notes(spec, context)),
        tuple(_warnings(spec, need, context)),
        ResourceSpec.of(spec).engine(context.on),
    )


def _notes(spec: JobSpec, context: PreviewContext) -> Iterator[Note]:
    stated = (spec.share, spec.gpus, spec.vram, spec.torchrun)
    if spec.llm is not None and stated == (None,) * 4 and spec.llm not in context.config.models:
        yield Note(NoteKind.MODEL_UNKNOWN, {"model": spec.llm})
    if spec.kind == "csv" and not _script_as_written(spec).startswith(("/", "~")):
        yield Note(NoteKind.SCRIPT_RELATIVE, {"script": _script_as_written(spec), "cwd": spec.cwd})


def _warnings(spec: JobSpec, need: Need, context: PreviewContext) -> Iterator[LineNote]:
    engine = ResourceSpec.of(spec).engine(context.on)
    if engine is not None and spec.vram is not None:
        yield Note(NoteKind.MEMORY_ON_ENGINE, {"engine": engine.capitalize()})
    if engine is not None and spec.oom_retries:
        yield Note(NoteKind.OOM_RETRIES_ON_ENGINE, {"engine": engine.capitalize()})
    taken = [] if engine is None else [name for name in NOT_ON_ENGINES if getattr(spec, name)]
    if engine is not None and taken:
        attributes = " and ".join(taken)
        yield Note(NoteKind.NOT_ON_ENGINE, {"engine": engine.capitalize(), "attributes": attributes})
    if context.known_gpus is not None and engine is None:
        usable = [gpu for gpu in context.known_gpus if spec.allowed is None or gpu in spec.allowed]
        large = [gpu for gpu in usable if could_fit(need, context.totals_mib.get(gpu), context.limits)]
        if need.count > len(usable):
            yield Note(NoteKind.TOO_FEW_GPUS, {"need": need, "usable": len(usable)})
        elif need.count > len(large):
            margin_mib = context.limits.margin_mib
            yield Note(NoteKind.GPUS_TOO_SMALL, {"need": need, "margin_mib": margin_mib})
    if not context.path_exists(spec.cwd):
        yield Note(NoteKind.CWD_MISSING, {"cwd": spec.cwd})
    if spec.conda is not None and context.conda_sh is None:
        yield Note(NoteKind.CONDA_MISSING, {"name": spec.conda})
    elif spec.conda is not None and _is_missing_env(context, spec.conda):
        environments = tuple(context.conda_envs or ())
        yield Note(NoteKind.CONDA_ENVIRONMENT_MISSING, {"name": spec.conda, "environments": environments})
    if spec.venv is not None and not context.path_exists(f"{spec.venv}/bin/activate"):
        yield Note(NoteKind.VENV_MISSING, {"path": spec.venv})
    if spec.script is not None and not context.path_exists(spec.script):
        yield Note(NoteKind.SCRIPT_MISSING, {"script": spec.script})
    # The shell of this machine says nothing about the programs of a node.
    yield from line_warnings(spec, need.count, context.shell if engine is None else None)
    yield from _background_warnings(spec)
    missing = _missing_script(spec, context.path_exists) if spec.kind == "command" else None
    if missing is not None:
        yield Note(NoteKind.SCRIPT_MISSING, {"script": missing})


def _background_warnings(spec: JobSpec) -> Iterator[str]:
    """Yields warnings about work that a command or its shell scripts start without waiting for it."""
    texts = {} if spec.command is None or spec.background == "ignore" else {"the command": spec.command}
    for word in (word.rstrip(";") for word in spec.words()) if texts else ():
        if word.endswith(SHELL_ENDINGS):
            content = safe_file.read(posixpath.join(program_folder(spec) or spec.cwd, word), trust=True)
            if isinstance(content, safe_file.Content):
                texts[word] = content.data.decode("utf-8", "replace")
    for where, text in texts.items():
        for form, remedy in background_work(text).items():
            if spec.background is None or not remedy.endswith(OR_BACKGROUND):
                yield f"{where} contains {form}, and the job does not wait for that work: {remedy}"


def _is_missing_env(context: PreviewContext, conda: str) -> bool:
    if conda.startswith("/"):
        return not context.path_exists(conda)
    return context.conda_envs is not None and conda not in context.conda_envs


def _script_as_written(spec: JobSpec) -> str:
    """Returns the script as written on the line."""
    try:
        return parse_csv(spec.text, None).script
    except ValueError:
        return spec.script or ""


def _missing_script(spec: JobSpec, path_exists: Callable[[str], bool]) -> str | None:
    """Returns the path of the missing script in a plain `python SCRIPT …` command; None if it exists.

    Other commands are not checked.
    """
    words = spec.words()
    if needs_bash(spec.command or "") or not words or not _PYTHON.fullmatch(words[0]):
        return None
    first = next((word for word in words[1:] if not word.startswith("-") or word in ("-c", "-m", "-")), None)
    if first is None or not first.endswith(".py"):
        return None
    path = posixpath.join(spec.cwd, first)
    return None if path_exists(path) else path


#: Maximum number of characters of the jobs of a grid together.
_MAX_TEXT = 64 * 1024 * 1024
#: The value of each attribute; a flag has the value True, and `env` has a list of variables.
AttributeValues = Mapping[str, str | bool | Sequence[str]]


class NewJob(Struct, frozen=True):
    """The script with its arguments, or the words of a command, of a new job, and its attributes.

    arguments: one text for a line of a jobs file. python: the interpreter for a script; None means that of
    its environment. priority: that of a line; None means the normal one.
    """

    script: str | None = None
    arguments: str | tuple[str, ...] = ()
    command: Sequence[str] = ()
    attributes: AttributeValues = field(default_factory=dict)
    python: str | None = None
    priority: int | None = None


@contextmanager
def nothing_is(done: str) -> Iterator[None]:
    """Lets each UsageError say that nothing was done. done: such as "submitted"."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{error}; nothing was {done}") from None


def expand_grid(new: NewJob, items: Sequence[str], *, is_zip: bool) -> list[NewJob]:
    """Returns the job of each combination of a grid (`compose.combinations`); this job itself without one.

    The values of a combination follow the name that was given, or that of the program. Raises UsageError.
    """
    if not items and not is_zip:
        return [new]
    try:
        found = compose.combinations(items, is_zip=is_zip)
        values = {**asdict(new), "attributes": {k: v for k, v in new.attributes.items() if k != "name"}}
        if len(found) * len(str(values)) > _MAX_TEXT:
            raise ValueError(f"the {len(found):,} jobs are too long; put long texts into a script")
        jobs = [replace(new, **one) for one in compose.filled(values, found)]
    except ValueError as error:
        raise UsageError(f"--grid: {error}") from None
    text = new.command[0] if len(new.command) == 1 else shlex.join(new.command)
    program = new.script or JobSpec("command", text, "/", command=text).program
    base = str(new.attributes.get("name") or compose.safe(re.sub(r"\.(?:py|sh)$", "", Path(program).name)))
    names = zip(jobs, compose.job_names(base, found), strict=True)
    return [replace(job, attributes={**job.attributes, "name": name}) for job, name in names]


def attribute_items(values: AttributeValues, folder: str = "") -> list[str]:
    """Returns the items of the attribute block in a fixed order, with absolute paths.

    folder: that of relative paths; "" for the current one.
    """
    items: list[str] = []
    for key in ATTRIBUTES:
        value = values.get(key)
        if value is True:
            items.append(key)
        elif isinstance(value, str):
            if value:
                if key in ("venv", "cwd"):
                    value = os.path.abspath(os.path.join(folder, os.path.expanduser(value)))
                items.append(f"{key}={value}")
        elif value:
            items += [f"{key}:{one}" for one in value]
    return items


def check_single_line(words: Sequence[str]) -> None:
    """Raises UsageError if the words of a command contain a character that no line may contain."""
    if any(bad in word for word in words for bad in "\n\r\0"):
        raise UsageError(
            "the command contains a line break or NUL; put it into a script and give the script instead"
        )


def compose_line(compose: Callable[[], str]) -> str:
    """Returns the line that `compose` returns. Raises UsageError if the values do not form a valid line."""
    try:
        line = compose()
    except ValueError as error:
        raise UsageError(f"these values do not form a valid line: {error}") from None
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{line!r} cannot be encoded in UTF-8") from None
    return line


def parse_new_line(line: str, cwd: str, known_gpus: frozenset[int] | None) -> tuple[JobSpec, list[str]]:
    """Parses the line as the scheduler does; returns its job and, for a command, the parser's notes.

    cwd: the absolute path of the working folder. Raises UsageError for a malformed line.
    """
    try:
        spec, notes = parse_job_line(line, cwd, known_gpus)
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None
    return spec, list(notes) if spec.kind == "command" else []


def job_warnings(recorded: RecordedSetting, spec: JobSpec) -> Iterator[LineNote]:
    """Yields the warnings that `lint` gives for the job."""
    conda_sh = recorded.conda_sh
    if conda_sh is None:
        spec = replace(spec, conda=None)  # no warning: the scheduler's machine may have conda
    config = LlmConfig() if recorded.options is None else current_llm_config(recorded.options)
    envs = _conda_environments(conda_sh, spec.conda) if conda_sh and spec.conda else None
    context = recorded.context(config, conda_sh, envs)
    yield from preview(0, spec, (), None, context).warnings


def _conda_environments(conda_sh: str, name: str) -> list[str] | None:
    """Returns the environments that conda lists; None if conda fails.

    Asking conda takes a second. This is not necessary if the environment is in its usual place.
    """
    if name == "base" or (Path(conda_sh).parents[2] / "envs" / name).is_dir():
        return [name]
    return known_environments(conda_sh)


# Determines the command that runs a submitted script, and finds the virtual environment of its folder.


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
    venvs = (each / ".venv" for each in (Path(folder), *Path(folder).parents))
    return next((venv for venv in venvs if all((venv / one).exists() for one in _VENV_FILES)), None)


def is_trusted(venv: Path) -> bool:
    """Returns whether this user or root owns a virtual environment, so that its programs can be trusted."""
    return venv.stat().st_uid in (os.getuid(), 0)
