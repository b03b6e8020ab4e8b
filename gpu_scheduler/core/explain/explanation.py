"""Explains why a command failed, by its exit code or signal, its log and the kernel's OOM counter.

A kill is attributed to exhausted host memory only if the kernel's own counter confirms it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from gpu_scheduler.core.model.job import AttemptResult, FailureContext
from gpu_scheduler.core.model.reasons import DEVICE_FAILURES, FailureKind, ReasonKind, StateReason

if TYPE_CHECKING:
    from gpu_scheduler.core.explain.log_end import LogEnd

#: Maximum number of characters of the error that are kept.
_MAX_ERROR_CHARS = 300
#: Maximum number of lines that may follow an error in the log. There is no limit with exit code 1, which is
#: Python's own exit code for an error.
_MAX_LINES_AFTER = 40
_SIGKILL, _CLOSED_PIPE = 9, 128 + 13

_WAS_KILLED = re.compile(r"\bKilled\b|SIGKILL|\bexit ?code:? -9\b|signal 9\b")
#: Message that NCCL prints below its error if two processes of a job use the same GPU.
_DUPLICATE_GPU = "Duplicate GPU detected"
#: The number of a visible GPU, or the UUID of a GPU, in an error.
_NAMED_GPU = re.compile(r"(?i)\b(?:cuda:|(?:GPU|device)[ :#=]{1,2})(\d{1,3})\b|\b(GPU-[\da-f-]{36}|SIM-\d+)")
#: The kinds of failures that a GPU may have caused. The command or the machine has caused all others.
_PERHAPS_BY_GPU = (
    None, *DEVICE_FAILURES, FailureKind.FABRIC_NOT_READY, FailureKind.NO_KERNEL_IMAGE,
    FailureKind.KERNEL_FAULT, FailureKind.NO_GPU_VISIBLE, FailureKind.GPU_DRIVER, FailureKind.CRASHED,
)  # fmt: skip


def is_failure(result: AttemptResult) -> bool:
    """Returns whether the command began, ended by itself and failed."""
    return result.cause is None and result.began and result.exit_code != 0


def blamed_gpus(reason: StateReason, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Returns which of the GPUs of a failed attempt may have caused its failure.

    gpus: their UUIDs in the order of their numbers. Of several, only those that the error names count.
    """
    has_failed = reason.kind is ReasonKind.COMMAND_FAILED and reason.exit_code != 0
    if not has_failed or reason.failure not in _PERHAPS_BY_GPU:
        return ()
    if len(gpus) == 1:
        return gpus
    named = {match.groups() for match in _NAMED_GPU.finditer(reason.error or "")}
    return tuple(uuid for at, uuid in enumerate(gpus) if {(str(at), None), (None, uuid)} & named)


def explain_failure(result: AttemptResult, context: FailureContext | None = None) -> StateReason:
    """Returns why a command that began failed."""
    if result.verdict == "unfinished":
        return StateReason(ReasonKind.COMMAND_FAILED, FailureKind.BACKGROUND_WORK, 0, message=result.message)
    # Imported here because compiling the regular expressions in these modules takes 5 ms, and `status` needs
    # them only for an attempt whose end is not in the store yet.
    from gpu_scheduler.core.explain.log_end import (
        LogEnd,
        cuda_oom,
        failure_kinds,
        most_specific,
        telling_line,
    )

    context = context or FailureContext()
    tail, pipe = context.log_tail, context.pipe_programs
    end = LogEnd(tail)
    oom = cuda_oom(end)
    lines = end.last_lines(_MAX_LINES_AFTER)
    error = end.error(None if result.exit_code == 1 else _MAX_LINES_AFTER) or oom or telling_line(lines)
    error = None if error is None else _one_line(error)
    oom_kill = _oom_kill(result, end)
    kinds = failure_kinds(result.exit_code, result.signal, error or "", tail, lines)
    gpu_ids = context.cuda_ids if FailureKind.INVALID_GPU_NUMBER in kinds else ()
    is_broken_pipe = pipe and (result.exit_code == _CLOSED_PIPE or "BrokenPipeError" in (error or ""))
    has_grep = any(program.endswith("grep") for program in pipe)
    others = (
        (oom is not None, FailureKind.CUDA_OOM),
        (gpu_ids, FailureKind.MISREAD_GPU_IDS),
        (oom_kill, FailureKind.HOST_OOM),
        (is_broken_pipe, FailureKind.BROKEN_PIPE),
        (has_grep and result.exit_code == 1 and not kinds and not error, FailureKind.GREP_IN_PIPE),
    )
    kinds += [kind for is_kind, kind in others if is_kind]
    return StateReason(
        ReasonKind.COMMAND_FAILED,
        most_specific(kinds),
        result.exit_code,
        result.signal,
        error=error,
        message=result.message,
        oom_kill=oom_kill,
        gpu_ids=gpu_ids,
        gpu_used_twice=_DUPLICATE_GPU in tail and _DUPLICATE_GPU not in (error or ""),
    )


def explain_launch_failure(result: AttemptResult, context: FailureContext | None = None) -> StateReason:
    """Returns why a command did not begin. The exit code in the result is then that of command.sh."""
    if result.claimed_gpu is not None:
        index = context.claimed_gpu if context is not None else None
        return StateReason(ReasonKind.GPU_CLAIMED, gpu=index, pid=result.claimed_by)
    from gpu_scheduler.core.explain.log_end import failure_kinds, most_specific

    kind = result.failure
    if kind is None and result.message is None:
        kind = most_specific(failure_kinds(result.exit_code, result.signal, ""))
    return StateReason(
        ReasonKind.LAUNCH_FAILED, kind, result.exit_code, result.signal, message=result.message
    )


def _oom_kill(result: AttemptResult, end: LogEnd) -> Literal["command", "child"] | None:
    """Returns which process the kernel probably killed because host memory ran out; None if it killed none.

    The kernel's counter also includes unrelated processes, so a child counts only if the log mentions a kill.
    """
    if not result.oom_kills:
        return None
    if result.signal == _SIGKILL or result.exit_code == 128 + _SIGKILL:
        return "command"
    lines = end.last_lines(_MAX_LINES_AFTER)
    return "child" if any(_WAS_KILLED.search(line) for line in lines) else None


def _one_line(text: str) -> str:
    """Returns the text as one line of printable characters, truncated to `_MAX_ERROR_CHARS`."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= _MAX_ERROR_CHARS else f"{plain[: _MAX_ERROR_CHARS - 1].rstrip()}…"
