"""Previews the job that a line of a jobs file would create."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.app.line_note import LineNote, Note, NoteKind, UnmetNeed
from gpu_scheduler.core.command.activation import environment_of
from gpu_scheduler.core.command.build import display_command
from gpu_scheduler.core.command.program_folder import program_folder
from gpu_scheduler.core.jobsfile import shell_syntax
from gpu_scheduler.core.jobsfile.csv_line import parse_csv
from gpu_scheduler.core.jobsfile.line_warnings import JobShell, line_warnings
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.priority import NORMAL_PRIORITY
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec, could_fit, resolve
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.system import safe_file

#: The placeholder in a command for the indices of the GPUs that the job will get.
GPU_IDS_PLACEHOLDER = "IDS"

_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*")


@dataclass(frozen=True)
class PreviewContext:
    """The machine and the options against which a line is checked.

    known_gpus: the indices of the existing GPUs, None if unknown; conda_sh: the file that defines `conda`,
    None if conda was not found; path_exists: returns whether a file or folder exists; conda_envs: the names
    of the environments, None if unknown; totals_mib: the memory of each GPU whose size is known, by index;
    limits: the scheduler's limits; shell: the shell of its jobs, None if unknown.
    """

    config: LlmConfig
    known_gpus: Collection[int] | None
    conda_sh: str | None
    path_exists: Callable[[str], bool]
    conda_envs: Collection[str] | None = None
    totals_mib: Mapping[int, int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shell: JobShell | None = None


@dataclass(frozen=True)
class Preview:
    """The preview of a well-formed line.

    conda: the environment that the job activates, None if it activates none; duplicate_of: the number of the
    earlier line with the same job, None if there is none; warnings: reasons why the job may not run, or not
    as the user expects.
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
    )


def _notes(spec: JobSpec, context: PreviewContext) -> Iterator[Note]:
    stated = (spec.share, spec.gpus, spec.vram, spec.torchrun)
    if spec.llm is not None and stated == (None,) * 4 and spec.llm not in context.config.models:
        yield Note(NoteKind.MODEL_UNKNOWN, {"model": spec.llm})
    if spec.kind == "csv" and not _script_as_written(spec).startswith(("/", "~")):
        yield Note(NoteKind.SCRIPT_RELATIVE, {"script": _script_as_written(spec), "cwd": spec.cwd})


def _warnings(spec: JobSpec, need: Need, context: PreviewContext) -> Iterator[LineNote]:
    if context.known_gpus is not None:
        usable = [gpu for gpu in context.known_gpus if spec.allowed is None or gpu in spec.allowed]
        large = [gpu for gpu in usable if could_fit(need, context.totals_mib.get(gpu), context.limits)]
        if need.count > len(usable):
            yield UnmetNeed(need, len(usable), context.limits.margin_mib)
        elif need.count > len(large):
            yield UnmetNeed(need, None, context.limits.margin_mib)
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
    yield from line_warnings(spec, need.count, context.shell)
    yield from _background_warnings(spec)
    missing = _missing_script(spec, context.path_exists) if spec.kind == "command" else None
    if missing is not None:
        yield Note(NoteKind.SCRIPT_MISSING, {"script": missing})


def _background_warnings(spec: JobSpec) -> Iterator[str]:
    """Yields warnings about work that a command or its shell scripts start without waiting for it."""
    texts = {} if spec.command is None or spec.background == "ignore" else {"the command": spec.command}
    for word in (word.rstrip(";") for word in spec.words()) if texts else ():
        if word.endswith(shell_syntax.SHELL_ENDINGS):
            content = safe_file.read(posixpath.join(program_folder(spec) or spec.cwd, word), trust=True)
            if isinstance(content, safe_file.Content):
                texts[word] = content.data.decode("utf-8", "replace")
    for where, text in texts.items():
        for form, remedy in shell_syntax.background_work(text).items():
            if spec.background is None or not remedy.endswith(shell_syntax.OR_BACKGROUND):
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
    if shell_syntax.needs_bash(spec.command or "") or not words or not _PYTHON.fullmatch(words[0]):
        return None
    first = next((word for word in words[1:] if not word.startswith("-") or word in ("-c", "-m", "-")), None)
    if first is None or not first.endswith(".py"):
        return None
    path = posixpath.join(spec.cwd, first)
    return None if path_exists(path) else path
