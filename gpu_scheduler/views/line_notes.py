"""Formats the notes about a line of a jobs file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.app.line_note import LineNote, NoteKind, UnmetNeed
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.text.formatting import count_noun, pid_text
from gpu_scheduler.views.need_text import need_text

_TEXTS = {
    NoteKind.MODEL_UNKNOWN: "model {model} is not in llm_config.json, so the default requirement applies",
    NoteKind.SCRIPT_RELATIVE: "script {script} is a relative path, which is looked up in {cwd}",
    NoteKind.CWD_MISSING: "the working folder {cwd} does not exist",
    NoteKind.CONDA_MISSING: (
        "conda environment {name} cannot be used, because conda was not found; pass conda.sh with --conda-sh"
    ),
    NoteKind.CONDA_ENVIRONMENT_MISSING: (
        "conda environment {name} does not exist; environments: {environments}"
    ),
    NoteKind.VENV_MISSING: "virtual environment {path} does not exist (it has no bin/activate)",
    NoteKind.SCRIPT_MISSING: "script {script} does not exist",
    NoteKind.JOB_EXISTS: "this line adds no new job: the identical job {job} is {state}",
    NoteKind.JOB_COMPLETED: (
        "this line will not run: the identical job {job} has completed; `retry {job}` runs it again"
    ),
    NoteKind.VENV_OF_OTHER_USER: (
        "virtual environment {path} is not used, because it belongs to another user; if you trust it, give it"
        " with --venv"
    ),
    NoteKind.SBATCH_READ: "the #SBATCH lines of {script} set {options}",
    NoteKind.SBATCH_NOT_READ: "the #SBATCH lines of {script} have options without effect here: {options}",
    NoteKind.PARENT_FAILED: (
        "job {job} has not completed ({outcome}), so this job is skipped until `retry {retried}` queues it"
        " again"
    ),
    NoteKind.GPU_NUMBER: "--gpus {gpu} means GPU number {gpu}; `--gpus-count N` requests N GPUs",
    NoteKind.NOT_WATCHED: "the scheduler ({scheduler_pid}) does not watch {path}; it watches {watched}",
}


def line_note_text(note: LineNote) -> str:
    """Formats a note about a line."""
    if isinstance(note, UnmetNeed):
        return unmet_need_text(note)
    if isinstance(note, str):
        return note
    if note.kind is NoteKind.ENVIRONMENT:
        return _environment_text(note.data)
    return _TEXTS[note.kind].format_map({key: _value_text(key, one) for key, one in note.data.items()})


def _environment_text(data: Mapping[str, Any]) -> str:
    conda, venv = data["conda"], data["venv"]
    text = "the line names no environment, so its job gets "
    text += "the programs on the scheduler's PATH" if conda is None else f"conda environment {conda}"
    return (
        text if venv is None else f"{text}; `--venv {shlex.quote(str(venv))}` takes the one that is nearest"
    )


def _value_text(key: str, value: object) -> str:
    if isinstance(value, tuple) and key == "retried":
        return " ".join(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "none known"
    if key == "scheduler_pid" and isinstance(value, int):
        return pid_text(value)
    if isinstance(value, Outcome):
        return str(value).replace("_", " ")
    return "no jobs file" if key == "watched" and not value else str(value)


def unmet_need_text(unmet: UnmetNeed) -> str:
    """Formats the warning about a need that the current GPUs cannot meet."""
    needs = f"the job needs {need_text(unmet.need)}"
    if unmet.usable is not None:
        gpus = count_noun(unmet.usable, "GPU")
        return f"{needs}, but may use only {gpus}, so it would wait until there are more"
    margin = f"the scheduler keeps {unmet.margin_mib} MiB free on each"
    return f"{needs}, but its GPUs are too small ({margin}), so it would wait until there are larger ones"
