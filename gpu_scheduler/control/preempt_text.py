"""Formats what `preempt` waits for, its result, and that of `resume --job`."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.control.answers import answer_text
from gpu_scheduler.control.preempt import (
    PreemptEnd,
    PreemptReport,
    PreemptWait,
    ResumeResult,
    why_no_checkpoint,
)
from gpu_scheduler.control.requests import Answer, AnswerKind
from gpu_scheduler.core.command.shell_words import has_place
from gpu_scheduler.core.model.job import Checkpoint
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.text.formatting import count_noun, format_duration, format_memory, pid_text, safe_text
from gpu_scheduler.views.job_text import checkpoint_text, outcome_text, path_in, step_text

#: A checkpoint that was saved at most this many seconds before its attempt ended contains all of its work.
_AT_END_S = 1.0


def wait_text(wait: PreemptWait) -> str:
    """Formats what `preempt` does and how long it waits, as two lines."""
    pid = "" if wait.pid is None else f" (pid {wait.pid})"
    first = f"sending SIG{wait.stop.signal} to job {wait.job_id}{pid}"
    if wait.is_repeated:
        first = f"job {wait.job_id}{pid} is being preempted already"
    return (
        f"{first}\n"
        f"waiting up to {wait.stop.grace_s:g} s for it to save its work and end; {_next_step_text(wait)}"
    )


def interrupted_text(wait: PreemptWait) -> str:
    """Formats what holds after Ctrl-C has ended the wait."""
    return (
        f"no longer waiting; the request stays: job {wait.job_id} has up to {wait.stop.grace_s:g} s to end,"
        f" {_next_step_text(wait)}\n`status` shows its state"
    )


def _next_step_text(wait: PreemptWait) -> str:
    return "then it gets SIGKILL" if wait.stop.on_timeout == "kill" else "otherwise it continues"


def failure_text(report: PreemptReport, wait: PreemptWait | None, data_dir: str) -> str | None:
    """Formats why the job was not preempted, with the remedy; None if it has ended.

    wait: None if the command refused the request at once. data_dir: the path of the store.
    """
    job = report.job_id
    if report.refusal is not None:
        return answer_text(Answer(job, AnswerKind.REFUSED, report.refusal), data_dir)
    if report.end is PreemptEnd.WITHDRAWN:
        longer = (
            "" if wait is None else f"`preempt {job} --timeout {2 * wait.stop.grace_s:g}` waits longer, and "
        )
        return (
            f"job {job} did not end in time, so its preemption was withdrawn and it continues;"
            " it may still end, if it is saving its work\n"
            f"{longer}`preempt {job} --force` ends it with SIGKILL after the timeout"
        )
    if report.end is PreemptEnd.PENDING:
        pid = report.scheduler_pid
        when = (
            "takes effect when the scheduler starts"
            if pid is None
            else f"stays with the scheduler ({pid_text(pid)})"
        )
        return f"job {job} has not ended; the request {when}"
    return None


def to_text(report: PreemptReport) -> str:
    """Formats how the job ended, with its newest checkpoint and the command that continues it, as lines."""
    return "".join(f"{safe_text(line)}\n" for line in _lines(report))


def _lines(report: PreemptReport) -> Iterator[str]:
    job, outcome = report.job_id, report.outcome
    if outcome is not Outcome.PREEMPTED:
        end = outcome_text(outcome or Outcome.ENDED, report.exit_code, report.signal)
        yield f"job {job}: {end}; it was not preempted{_state_text(report)}"
        return
    yield f"job {job} preempted{_state_text(report)}"
    if report.checkpoint is None:
        yield f"  no complete checkpoint: {why_no_checkpoint(report.job.spec)}"
    else:
        yield f"  latest checkpoint: {_checkpoint_text(report, report.checkpoint)}"
    if report.job.state is JobState.HELD:
        yield f"  `{_next_command(report)}"


def _next_command(report: PreemptReport) -> str:
    if report.checkpoint is None:
        from_path = f"`resume --job {report.job_id} --from PATH` continues from one that you name"
        return f"retry {report.job_id}` starts it from its beginning, and {from_path}"
    if not has_place(report.job.spec):
        return f"resume --job {report.job_id}` says what its command needs to continue from it"
    return f"resume --job {report.job_id}` continues it"


def _state_text(report: PreemptReport) -> str:
    """Formats the state of the job if it is not the usual one."""
    state = report.job.state
    if state is JobState.QUEUED:
        return " and queued again" if report.outcome is Outcome.PREEMPTED else "; it is queued again"
    return " and cancelled" if report.job.outcome is Outcome.CANCELLED is not report.outcome else ""


def _checkpoint_text(report: PreemptReport, checkpoint: Checkpoint) -> str:
    path = path_in(checkpoint.path, report.job.spec.cwd)
    details = [] if checkpoint.step is None else [step_text(checkpoint.step)]
    if checkpoint.saved_at is not None and report.ended_at is not None:
        before_s = max(0.0, report.ended_at - checkpoint.saved_at)
        is_at_end = before_s <= _AT_END_S if report.lost_steps is None else report.lost_steps == 0
        when = "at its end" if is_at_end else f"{format_duration(before_s)} before its end"
        details.append(f"saved {when}{'' if is_at_end else _loss_text(report.lost_steps)}")
    return path if not details else f"{path} ({', '.join(details)})"


def _loss_text(steps: float | None) -> str:
    if steps is None:
        return "; what came after is lost"
    return f"; {count_noun(round(steps), 'step')} after it {'is' if steps == 1 else 'are'} lost"


def resume_text(result: ResumeResult, data_dir: str) -> str:
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
