"""Formats what is known about a job: the reason of its state, its warnings, its progress and checkpoints."""

from __future__ import annotations

import os.path
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from signal import Signals
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from gpu_scheduler.core.model.reasons import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import ACTIVE, Outcome
from gpu_scheduler.core.model.values import share_text
from gpu_scheduler.core.text.formatting import format_eta, format_memory, times_text

if TYPE_CHECKING:
    from gpu_scheduler.core.explain.progress import JobProgress
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse
    from gpu_scheduler.core.model.job import Attempt, Checkpoint, EngineStatus, Progress
    from gpu_scheduler.show.job_views import AttemptWarning, JobView

# Formats checkpoints: where they are, and at which step they were saved.


def step_text(step: float) -> str:
    """Formats a step: "step 150"."""
    return f"step {step:.15g}"


def checkpoint_text(checkpoint: Checkpoint, folder: str | None = None) -> str:
    """Formats a checkpoint: "outputs/checkpoint-150 (step 150)". folder: the folder of its job."""
    path = checkpoint.path if folder is None else path_in(checkpoint.path, folder)
    return path if checkpoint.step is None else f"{path} ({step_text(checkpoint.step)})"


def checkpoint_object(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """Returns a checkpoint as a JSON object; None if there is none."""
    return None if checkpoint is None else {"path": checkpoint.path, "step": checkpoint.step}


def path_in(path: str, folder: str) -> str:
    """Returns a path relative to the folder if it is in it, otherwise as it is."""
    within = path.removeprefix(f"{folder.rstrip('/')}/")
    return within if within != path and os.path.isabs(path) else path


def origin_text(path: str | None, step: float | None) -> str:
    """Formats from what a job resumes, shortly: "step 150", or the path if the step is unknown."""
    return path or "" if step is None else step_text(step)


_MAX_PIDS = 8
_SIGNAL_MEANINGS = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "it aborted itself",
    "SIGBUS": "bad memory access, often because /dev/shm is full",
    "SIGILL": "illegal instruction: built for another processor",
    "SIGFPE": "arithmetic error",
    "SIGPIPE": "it wrote to a closed pipe",
    "SIGXCPU": "CPU time limit exceeded",
    "SIGXFSZ": "file size limit exceeded",
}
_EXIT_CODE_MEANINGS = {126: "found, but cannot be executed", 127: "command not found"}
_CLOSED_PIPE = "exit code 141, because a program in its pipe wrote more than the next one read"
#: The end of a parent because of which a job was skipped, by the outcome of the parent.
_PARENT_ENDS = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.CANCELLED: "was cancelled",
    Outcome.NOT_STARTED: "could not be started",
    Outcome.SKIPPED: "was skipped",
}


def reason_text(reason: StateReason, *, without_exit: bool = False) -> str:
    """Formats a reason.

    without_exit: omit the exit code or signal, and its meaning if the error states it; returns "" if the
    reason says nothing else.
    """
    first, *rest = _parts(reason)
    bare, error = _bare_exit(reason), reason.error or ""
    if without_exit and first.startswith(bare) and (first != bare or error or not rest):
        meaning = first.removeprefix(bare).strip().replace("(", "", 1).replace(")", "", 1)
        first = error if error.endswith(meaning) else ": ".join(filter(None, (meaning, error)))
    elif reason.error is not None:
        first += f": {reason.error}"
    return "; ".join([first, *rest])


def _parts(reason: StateReason) -> Iterator[str]:
    cause = reason.kind.fill(reason, _PHRASES)
    abandoned = [step for step in reason.next_steps if step.kind is NextKind.LAUNCH_ABANDONED]
    if abandoned:
        times = abandoned[0].number
        tried = "" if times == 1 else f" (tried {times} times)"
        yield f"could not be started: {cause}{tried}"
    else:
        yield cause
    if reason.oom_kill == "child":
        yield "one of its processes was killed by SIGKILL, probably because memory ran out"
    if reason.gpu_ids:
        given = ",".join(map(str, reason.gpu_ids))
        yield (
            f"it was given --cuda {given}, but its visible GPUs are numbered from 0: put [cuda-ids=visible]"
            " before its line, or start the scheduler with --cuda-ids visible"
        )
    if reason.gpu_used_twice:
        yield "NCCL: Duplicate GPU detected"
    if reason.left_count and (reason.kind is not ReasonKind.COMPLETED or reason.exit_code):
        yield _left_text(reason)
    if reason.kind in (ReasonKind.COMMAND_FAILED, ReasonKind.COMPLETED) and reason.message is not None:
        yield reason.message
    if reason.survivors:
        pids = ", ".join(map(str, reason.survivors[:_MAX_PIDS]))
        one = len(reason.survivors) == 1
        yield f"process {pids} is still running" if one else f"processes {pids} are still running"
    for step in reason.next_steps:
        text = step.kind.fill(step, _STEP_PHRASES, reason.kind)
        if text:
            yield text


def _left_text(reason: StateReason) -> str:
    """Names the processes that a command left: "2 processes were left and then ended: sleep 9; …"."""
    count = reason.left_count or 0
    names = "; ".join([*reason.left, *(["…"] if count > len(reason.left) else [])])
    return f"{count} {'process was' if count == 1 else 'processes were'} left and then ended: {names}"


def parent_end_text(job_id: int, outcome: Outcome | None) -> str:
    """Formats the end of a parent that did not complete: "job 3 failed"."""
    end = None if outcome is None else _PARENT_ENDS.get(outcome)
    return f"job {job_id} {end or 'did not complete'}"


def _exit_text(reason: StateReason) -> str:
    """Describes the exit code or the signal, and says so if memory probably ran out."""
    memory = ", probably because memory ran out" if reason.oom_kill == "command" else ""
    if reason.signal is not None:
        name = signal_name(reason.signal)
        meaning = f" ({_SIGNAL_MEANINGS[name]})" if name in _SIGNAL_MEANINGS else ""
    elif reason.exit_code is not None:
        meaning = _exit_code_meaning(reason.exit_code)
    else:
        return "nothing was started"
    return f"{_bare_exit(reason)}{meaning}{memory}"


def _bare_exit(reason: StateReason) -> str:
    if reason.signal is not None:
        return f"killed by {signal_name(reason.signal)}"
    return f"exit code {reason.exit_code}"


def _exit_code_meaning(code: int) -> str:
    if code in _EXIT_CODE_MEANINGS:
        return f" ({_EXIT_CODE_MEANINGS[code]})"
    name = signal_name(code - 128) if 128 < code <= 128 + 31 else ""
    return f" (a program it ran was killed by {name})" if name.startswith("SIG") else ""


#: The phrases in the sentences of `ReasonKind`.
_PHRASES: Mapping[str, Callable[[StateReason], str]] = {
    "exit": lambda it: (it.failure and it.failure.sentence) or _exit_text(it),
    "launch_error": lambda it: (
        f"its command could not be started ({_exit_text(it)})" if it.message is None else it.message
    ),
    "claimed_gpu": lambda it: "one of its GPUs" if it.gpu is None else f"GPU {it.gpu}",
    "program": lambda it: "another program" if it.pid is None else f"pid {it.pid}",
    "report": lambda it: it.message or "interrupted",
    "remains": lambda it: _CLOSED_PIPE if it.exit_code else _left_text(it),
    "for_job": lambda it: "" if it.preemptor is None else f" for job {it.preemptor}",
    "death": lambda it: "was killed" if it.message is None else f"died, and {it.message}",
    "parent_end": lambda it: parent_end_text(it.parent or 0, it.parent_outcome),
}


def _continuation(step: NextStep, cause: ReasonKind) -> str:
    if step.checkpoint is not None:
        return f"`resume --job {step.job_id}` continues from {origin_text(step.checkpoint, step.step)}"
    return f"`retry {step.job_id}` runs it{'' if cause is ReasonKind.STORE_LOST else ' again'}"


#: The phrases in the sentences of `NextKind`.
_STEP_PHRASES: Mapping[str, Callable[[NextStep, ReasonKind], str]] = {
    "with_memory": lambda it, _: "" if it.vram_mib is None else f" with {format_memory(it.vram_mib)} per GPU",
    "memory": lambda it, _: format_memory(it.vram_mib or 0),
    "origin": lambda it, _: origin_text(it.checkpoint, it.step),
    "continuation": _continuation,
}


def outcome_text(outcome: str, exit_code: int | None, signal: int | None) -> str:
    """Formats the outcome of a job: "completed", "failed, exit code 7", "failed, SIGKILL", "timed out"."""
    words = outcome.replace("_", " ")
    if outcome != Outcome.FAILED.value:
        return words
    if signal is not None:
        return f"{words}, {signal_name(signal)}"
    return words if not exit_code else f"{words}, exit code {exit_code}"


def signal_name(number: int) -> str:
    """Returns the name of a signal: "SIGKILL" for 9, "signal 40" for a signal without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def job_warnings(job: JobView) -> list[str]:
    """Returns the warnings about a job and its newest attempt."""
    is_open = job.record.state in ACTIVE
    return [_warning_text(job.record.id, one, is_open=is_open) for one in job.warnings]


def attempt_warnings(attempt: Attempt, warnings: Iterable[AttemptWarning]) -> list[str]:
    """Returns the warnings about an attempt."""
    is_open = attempt.outcome is None
    return [_warning_text(attempt.job_id, one, is_open=is_open) for one in warnings]


def _warning_text(job_id: int, warning: AttemptWarning, *, is_open: bool) -> str:
    # This import is here to keep commands fast when there is no warning.
    from gpu_scheduler.core.model.event import MisplacedProcess

    if isinstance(warning, str):
        return f"job {job_id}: {warning}"
    if isinstance(warning, MisplacedProcess):
        return f"job {job_id} {misplaced_process_text(warning)}"
    effect = ": its neighbors may run out of memory" if is_open else ""
    used = f"{warning.observed} MiB on GPU {warning.gpu}"
    return f"job {job_id} declared {declared_text(warning)} but used {used}{effect}"


def declared_text(overuse: Overuse) -> str:
    """Formats what an attempt declared, as memory or as a share."""
    mib = overuse.declared
    return f"{mib} MiB" if overuse.share is None else share_text(overuse.share, mib)


def misplaced_process_text(found: MisplacedProcess) -> str:
    """Formats the warning about a misplaced process, as text that follows the job's name."""
    own = f"GPU{'' if len(found.allocated) == 1 else 's'} {','.join(map(str, found.allocated))}"
    return (
        f"was given {own} but uses GPU {found.gpu} (process {found.pid}): it probably sets"
        " CUDA_VISIBLE_DEVICES itself, although the scheduler has already set it; if the job must run on that"
        f" GPU, add [allowed={found.gpu}] to its line"
    )


def short_text(shown: JobProgress | None) -> str:
    """Formats a progress for a table: "53% ETA 1h24m", "53%", "step 150"; "" if nothing is known."""
    if shown is None or shown.progress is None:
        return ""
    done = percent_text(shown) or _count_text(shown.progress)
    return done if shown.remaining_s is None else f"{done} ETA {format_eta(shown.remaining_s)}"


def long_text(shown: JobProgress | None, now: float) -> str:
    """Formats a progress for the details of a job; "" if nothing is known.

    Example: "53% (step 159 of 300), ETA 1h24m, at 19:57".
    """
    if shown is None or shown.progress is None:
        return ""
    percent, count = percent_text(shown), _count_text(shown.progress)
    done = count if not percent else percent if not count else f"{percent} ({count})"
    if shown.remaining_s is None or shown.finish_at is None:
        return done
    return f"{done}, ETA {format_eta(shown.remaining_s)}, at {finish_text(shown.finish_at, now)}"


def percent_text(shown: JobProgress) -> str:
    """Formats the finished part, rounded down: "53%"; "" if unknown."""
    return "" if shown.percent is None else f"{int(shown.percent)}%"


def finish_text(at: float, now: float) -> str:
    """Formats a local time: "19:57" today, "Tue 03:12" within six days, otherwise "2026-11-29 03:12"."""
    then = time.localtime(at)
    if time.strftime("%Y-%j", then) == time.strftime("%Y-%j", time.localtime(now)):
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if 0 <= at - now < 6 * 86400 else "%Y-%m-%d %H:%M", then)


def from_time_text(start_at: float, overtakes: int | None, now: float) -> str:
    """Formats from when on a GPU is reserved for a job: " from about 14:20 (it has been overtaken 9 times)".

    now: in seconds since 1970.
    """
    why = "" if overtakes is None else f" (it has been overtaken {times_text(overtakes)})"
    return f" from about {finish_text(start_at, now)}{why}"


def progress_object(shown: JobProgress | None) -> dict[str, Any] | None:
    """Returns a progress as a JSON object; None if nothing is known."""
    if shown is None or (shown.progress is None and shown.checkpoint is None):
        return None
    progress, checkpoint = shown.progress, shown.checkpoint
    return {
        "percent": None if shown.percent is None else round(shown.percent, 2),
        "current": None if progress is None else progress.current,
        "total": None if progress is None else progress.total,
        "unit": None if progress is None else progress.unit.value,
        "eta_s": None if shown.remaining_s is None else round(shown.remaining_s, 1),
        "finish_at": shown.finish_at,
        "checkpoint": None if checkpoint is None else asdict(checkpoint),
    }


def _count_text(progress: Progress) -> str:
    """Formats a count such as "step 159 of 300"; "" for percent."""
    if progress.unit.value == "percent":
        return ""
    noun = "step" if progress.unit.value == "checkpoint" else progress.unit.value
    of = "" if progress.total is None else f" of {progress.total:.15g}"
    return f"{noun} {round(progress.current, 2):.15g}{of}"


def engine_text(attempt: Attempt, engine: EngineStatus) -> str:
    """Returns where an attempt runs or ran, and what its engine says: "on Slurm, node n2, Slurm job 17"."""
    name = attempt.executor.capitalize()
    node = f", node {engine.node}" if engine.node else ""
    number = f", {name} job {engine.native_id}" if engine.native_id else ""
    # Why it has waited does not matter any more.
    reason = "" if attempt.outcome is not None and engine.state == "pending" else engine.reason
    return f"on {name}{node}{number}{reason and f': {reason}'}"


def engine_object(attempt: Attempt, engine: EngineStatus | None) -> dict[str, Any] | None:
    """Returns where an attempt runs or ran, as a JSON object; None on this machine."""
    return None if engine is None else {"name": attempt.executor, **asdict(engine)}
