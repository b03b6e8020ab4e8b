"""Formats the remedies for a failed job. They depend on the kind of its failure."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpu_scheduler.app.diagnosis import OomCase
from gpu_scheduler.core.model.state_reason import FailureKind
from gpu_scheduler.core.model.units import format_seconds
from gpu_scheduler.core.text.formatting import format_gpus

#: The failures that end once the script or the environment of the job exists.
_MISSING = (FailureKind.SCRIPT_MISSING, FailureKind.CONDA_MISSING, FailureKind.ENVIRONMENT_MISSING)
_FRAGMENTED = (
    "; PyTorch held much memory that it could not use: [env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True]"
    " lets it use that memory"
)


class Remedy(NamedTuple):
    """A way out of a failure. restarts: whether this runs the job again, or a new one instead."""

    text: str
    restarts: bool = False


def failure_remedy(
    kind: FailureKind | None, job_id: int | None = None, *, is_script: bool = False
) -> Remedy | None:
    """Returns the remedy for a failure; None if none is known. For CUDA_OOM, see `oom_remedy`.

    job_id: the job, if it has no line that the user can correct; is_script: whether it has no command either.
    """
    remedy = "" if kind is None else kind.remedy
    if job_id is not None and kind in _MISSING:
        remedy = "create the script or environment that the job names"
    elif job_id is not None and kind is FailureKind.WRONG_USAGE:
        remedy = "submit it again with other arguments" if is_script else "{command='…'} with other arguments"
    if not remedy:
        return None
    is_set = job_id is not None and remedy.startswith("{")
    return Remedy(_with_forms(remedy, job_id), is_set or kind is FailureKind.WRONG_USAGE)


def timeout_remedy(timeout_s: float | None, job_id: int | None) -> Remedy:
    """Returns the remedy for a job that reached its time limit. job_id: as for `failure_remedy`."""
    limit = "its time limit" if timeout_s is None else f"its time limit of {format_seconds(timeout_s)}"
    remedy = f"raise {limit}, as with <timeout=…>" if job_id is None else f"{{timeout=…}} to raise {limit}"
    return Remedy(_with_forms(remedy, job_id), job_id is not None)


def _with_forms(remedy: str, job_id: int | None) -> str:
    """Fills in how an attribute is set: {gpus=2} as an instruction, <gpus=2> as an example."""
    line, job = (r"put [\1] before its line", r"[\1]"), rf"`retry {job_id} --set \1`"
    form, example = line if job_id is None else (f"run {job}", job)
    return re.sub(r"<([\w:=…]+)>", example, re.sub(r"\{([\w='…]+)\}", form, remedy))


def oom_remedy(case: OomCase, job_id: int | None = None) -> Remedy:
    """Returns the remedy for a job that ran out of GPU memory. job_id: as for `failure_remedy`.

    Advises requesting more memory only if the GPUs that the job had can provide more.
    """
    return Remedy(_memory_remedy(case, job_id) + (_FRAGMENTED if case.is_fragmented else ""))


def _memory_remedy(case: OomCase, job_id: int | None) -> str:
    if not (case.had_gpus_alone or case.at_limit):
        how = "" if job_id is None else f", as with `retry {job_id} --set vram=…`"
        return (
            "the GPU was full, and other processes used it too: request more memory (vram= or"
            f" share={how}), let retries request more (oom-retries=), or use a smaller batch"
        )
    one = case.gpu_count == 1
    had = (
        f"its GPU{'' if one else 's'} to itself"
        if case.had_gpus_alone
        else "the most memory that a GPU can provide"
    )
    where = f" ({format_gpus(case.larger_gpus)})" if case.larger_gpus else ""
    more = "two" if one else str(case.gpu_count + 1)
    return _with_forms(
        f"the job had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" (<gpus={case.gpu_count + 1}>) if the program can split its model",
        job_id,
    )
