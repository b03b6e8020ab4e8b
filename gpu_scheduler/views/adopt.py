"""Formats the result of `adopt`."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.app.adopt import AdoptedJob
from gpu_scheduler.core.text.formatting import safe_text


def to_text(job: AdoptedJob) -> str:
    """Formats an adopted job as three lines: its id and name, its command and its folder."""
    name = "" if job.name is None else f": {job.name}"
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
