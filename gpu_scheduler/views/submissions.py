"""Formats the results of `submit`, `adopt` and `import`, and the notes about lines of a jobs file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_scheduler.app.adopt import AdoptedJob
from gpu_scheduler.app.import_queue import ImportReport
from gpu_scheduler.app.line_note import LineNote, NoteKind, UnmetNeed
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.text.formatting import count_noun, pid_text, safe_text
from gpu_scheduler.views.wait_text import need_text

# Formats the notes about a line of a jobs file.


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
    NoteKind.PARENT_NOT_IMPORTED: (
        "held, because {parent} in the file, which it waits for, is {status}; `release` starts it anyway"
    ),
    NoteKind.VARIABLE_IGNORED: "{name}={value} is ignored, because the scheduler chooses the GPUs",
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


# Formats the result of `adopt`.


def adopt_text(job: AdoptedJob) -> str:
    """Formats an adopted job as three lines: its id and name, its command and its folder."""
    name = "" if job.name is None else f": {safe_text(job.name)}"
    return (
        f"Adopted PID {job.pid} as job {job.id}{name}\n"
        f"    cmd: {safe_text(job.text)}\n"
        f"    cwd: {safe_text(job.cwd)}\n"
    )


def note_text(job: AdoptedJob) -> Iterator[str]:
    """Yields notes on the GPUs and the log of an adopted job, and on a scheduler that is not running."""
    gpus = f"GPU{'s' * (len(job.gpus) > 1)} {', '.join(map(str, job.gpus))}"
    alone = "; no other job starts there, because --vram was not given" if job.is_alone else ""
    yield f"it uses {gpus}{alone}"
    if not job.can_start:
        yield (
            "it has replaced its command line by a title, so it cannot be started again unless"
            f" `set {job.id} command='…'` names its command after its end"
        )
    if job.log is None:
        yield "its output does not go to a file, so `logs` cannot show it"
    if not job.is_scheduler_up:
        yield "no scheduler is running; the next one watches the process (`start`)"


# Formats the result of importing a `queue.json`.


#: Up to this many imported jobs get a line each.
_MAX_LINES = 20


def import_text(report: ImportReport) -> str:
    """Formats the imported jobs, the jobs that were left out, and the new name of the file."""
    return "".join(f"{safe_text(line)}\n" for line in _import_lines(report))


def _import_lines(report: ImportReport) -> Iterator[str]:
    path, made = report.path, report.made
    if made.ids and not made.jobs:
        yield f"{path} was imported before as {_ids(made.ids)}; nothing was imported again"
    elif not made.jobs:
        yield f"{path} has no pending jobs; nothing was imported"
    elif len(made.jobs) > _MAX_LINES:
        yield f"imported {_ids(made.ids)} from {path}"
    else:
        for job_id, job in zip(made.ids, made.jobs, strict=True):
            after = f" (after {', '.join(job.after)})" if job.after else ""
            yield f"job {job_id}: {f'{job.name}: ' if job.name else ''}{job.text}{after}"
    if report.left_out:
        counts = ", ".join(f"{number:,} {status}" for status, number in sorted(report.left_out.items()))
        yield f"not imported, because only pending jobs are: {counts}"
    if report.renamed_to is not None:
        yield f"{path} is now {report.renamed_to}"
    if made.jobs and not made.is_scheduler_up:
        yield "no scheduler is running; `start` runs the jobs"


def _ids(ids: tuple[int, ...]) -> str:
    """Formats ids that are in ascending order, such as "jobs 4-6"."""
    if len(ids) == 1:
        return f"job {ids[0]}"
    if ids[-1] - ids[0] == len(ids) - 1:
        return f"jobs {ids[0]}-{ids[-1]}"
    return f"{count_noun(len(ids), 'job')} from {ids[0]} to {ids[-1]}"


def import_warnings(report: ImportReport) -> Iterator[str]:
    """Yields the warnings about the imported jobs, and why the file was not renamed."""
    if report.made.jobs:
        for job_id, notes in zip(report.made.ids, report.notes, strict=True):
            yield from (f"job {job_id}: {line_note_text(note)}" for note in notes)
    if report.rename_problem is not None:
        yield (
            f"{report.path} was imported but not renamed: {report.rename_problem}; rename it yourself"
            " (as long as it is unchanged, it is not imported again)"
        )
