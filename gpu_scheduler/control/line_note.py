"""Defines and formats a note about a line of a jobs file: why its job may not run as the user expects."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Code
from gpu_scheduler.core.text.formatting import count_noun, pid_text
from gpu_scheduler.show.wait_text import need_text


# fmt: off
class NoteKind(Code):
    """The subject of a note. Its sentence names the values that the note has as its data."""

    MODEL_UNKNOWN = ("model_unknown",
        "model {model} is not in llm_config.json, so the default requirement applies")
    SCRIPT_RELATIVE = ("script_relative",
        "script {script} is a relative path, which is looked up in {cwd}")
    CWD_MISSING = "cwd_missing", "the working folder {cwd} does not exist"
    CONDA_MISSING = ("conda_missing", "conda environment {name} cannot be used, because conda was not found;"
        " pass conda.sh with --conda-sh")
    CONDA_ENVIRONMENT_MISSING = ("conda_environment_missing",
        "conda environment {name} does not exist; environments: {environments}")
    VENV_MISSING = "venv_missing", "virtual environment {path} does not exist (it has no bin/activate)"
    SCRIPT_MISSING = "script_missing", "script {script} does not exist"
    JOB_EXISTS = "job_exists", "this line adds no new job: the identical job {job} is {state}"
    JOB_COMPLETED = ("job_completed",
        "this line will not run: the identical job {job} has completed; `retry {job}` runs it again")
    VENV_OF_OTHER_USER = ("venv_of_other_user", "virtual environment {path} is not used, because it belongs"
        " to another user; if you trust it, give it with --venv")
    #: options: the attributes that the #SBATCH lines set.
    SBATCH_READ = "sbatch_read", "the #SBATCH lines of {script} set {options}"
    SBATCH_NOT_READ = ("sbatch_not_read",
        "the #SBATCH lines of {script} have options without effect here: {options}")
    #: retried: the ids of the jobs to retry.
    PARENT_FAILED = ("parent_failed", "job {job} has not completed ({outcome}), so this job is skipped until"
        " `retry {retried}` queues it again")
    #: parent: such as "job 2 (eval)".
    PARENT_NOT_IMPORTED = ("parent_not_imported", "held, because {parent} in the file, which it waits for, is"
        " {status}; `release` starts it anyway")
    VARIABLE_IGNORED = "variable_ignored", "{name}={value} is ignored, because the scheduler chooses the GPUs"
    GPU_NUMBER = "gpu_number", "--gpus {gpu} means GPU number {gpu}; `--gpus-count N` requests N GPUs"
    #: conda: the environment of a line that names none; venv: the path of the nearest .venv; None if none.
    ENVIRONMENT = "environment", "the line names no environment, so its job gets {programs}"
    #: usable: the number of GPUs that the job may use.
    TOO_FEW_GPUS = ("too_few_gpus", "the job needs {need}, but may use only {usable}, so it would wait until"
        " there are more")
    #: margin_mib: the memory on each GPU that the scheduler never allocates.
    GPUS_TOO_SMALL = ("gpus_too_small", "the job needs {need}, but its GPUs are too small (the scheduler"
        " keeps {margin_mib} MiB free on each), so it would wait until there are larger ones")
    MEMORY_ON_ENGINE = ("memory_on_engine",
        "{engine} does not reserve GPU memory, so the job gets whole GPUs there")
    OOM_RETRIES_ON_ENGINE = ("oom_retries_on_engine",
        "oom-retries has no effect on {engine}, because nobody measures the memory of the job there")
    #: attributes: such as "allowed and preempt".
    NOT_ON_ENGINE = ("not_on_engine",
        "{engine} cannot honour {attributes}, so the job would wait; use on=local, or leave that out")
    #: watched: the jobs file that the scheduler watches; "" if none.
    NOT_WATCHED = ("not_watched",
        "the scheduler ({scheduler_pid}) does not watch {path}; it watches {watched}")
# fmt: on


class Note(Struct, frozen=True):
    """A note about a line, with the data that belongs to its kind."""

    kind: NoteKind
    data: Mapping[str, object]


#: The notes about a need that the current GPUs cannot meet.
UNMET_NEEDS = (NoteKind.TOO_FEW_GPUS, NoteKind.GPUS_TOO_SMALL)
#: A plain string is a message from the line parser.
LineNote = Note | str


def line_note_text(note: LineNote) -> str:
    """Formats a note about a line."""
    if isinstance(note, str):
        return note
    values = {key: _value_text(key, one) for key, one in note.data.items()}
    if note.kind is NoteKind.ENVIRONMENT:
        values["programs"] = _programs_text(note.data)
    return note.kind.sentence.format_map(values)


def _programs_text(data: Mapping[str, Any]) -> str:
    conda, venv = data["conda"], data["venv"]
    text = "the programs on the scheduler's PATH" if conda is None else f"conda environment {conda}"
    return (
        text if venv is None else f"{text}; `--venv {shlex.quote(str(venv))}` takes the one that is nearest"
    )


def _value_text(key: str, value: object) -> str:
    if isinstance(value, tuple) and key == "retried":
        return " ".join(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "none known"
    if isinstance(value, Need):
        return need_text(value)
    if isinstance(value, int) and key in ("scheduler_pid", "usable"):
        return pid_text(value) if key == "scheduler_pid" else count_noun(value, "GPU")
    if isinstance(value, Outcome):
        return str(value).replace("_", " ")
    return "no jobs file" if key == "watched" and not value else str(value)
