"""Formats the answers to requests about jobs and GPUs."""

from __future__ import annotations

from gpu_scheduler.app.answers import Answer, AnswerKind, StopResult
from gpu_scheduler.core.text.formatting import pid_text, safe_text

_STOP_TEXTS = {
    StopResult.HAD_ENDED: "had already ended by itself; the scheduler records this at its next start",
    StopResult.PROCESSES_LEFT: "not ended: some of its processes are left",
    StopResult.RUNNER_UNLOCKED: (
        "not ended: its runner is alive but does not hold the claim in this folder; see `why`"
    ),
}


def answer_text(answer: Answer) -> str:
    """Formats what became of a request, safe to print."""
    if answer.kind is AnswerKind.RECORDED:
        return "recorded; takes effect when the scheduler starts"
    if answer.kind is AnswerKind.UNANSWERED:
        return f"recorded; the scheduler ({pid_text(answer.scheduler_pid or 0)}) has not answered yet"
    if answer.stop_result is not None:
        return stop_result_text(answer.stop_result)
    return safe_text(answer.text, keep_line_breaks=True)


def stop_result_text(result: StopResult) -> str:
    """Formats how the end of a job went that was stopped without a scheduler."""
    return _STOP_TEXTS.get(result, result.value)
