"""Formats the result of `resume --job`."""

from __future__ import annotations

from gpu_scheduler.app.control import AnswerKind
from gpu_scheduler.app.preempt import ResumeResult
from gpu_scheduler.core.text.formatting import format_memory, safe_text
from gpu_scheduler.views.answers import answer_text
from gpu_scheduler.views.reason_text import checkpoint_text


def to_text(result: ResumeResult, data_dir: str) -> str:
    """Formats the result as text that is safe to print. data_dir: the path of the store."""
    said = answer_text(result.answer, data_dir)
    if result.answer.kind is AnswerKind.REFUSED or result.checkpoint is None:
        return said
    job = result.job
    name = "" if job.name is None else f" ({job.name})"
    where = checkpoint_text(result.checkpoint, job.spec.cwd)
    head = f"job {job.id}{name} {said}"
    if result.answer.kind is not AnswerKind.CARRIED_OUT:
        head = f"job {job.id}{name}: {said}"
    lines = [f"{head}, resuming from {where}"]
    if result.min_vram_mib is not None:
        memory = format_memory(result.min_vram_mib)
        lines.append(f"  it needs {memory} on each GPU, because it has used that much")
    return "\n".join(map(safe_text, lines))
