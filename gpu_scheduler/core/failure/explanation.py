"""Explains in one line why a job failed: exit code or signal, the error in its log, the kernel's OOM count.

A job is called "out of memory" only if the kernel's own counter agrees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals

from gpu_scheduler.core.model.attempt_status import AttemptResult, FailureContext

#: Most characters of the error, and of the whole explanation.
_MAX_ERROR_CHARS = 300
_MAX_CHARS = 700
#: With an exit code other than Python's 1, an error in the log counts only if at most this many lines follow.
_MAX_LINES_AFTER = 40
_SIGKILL = 9

_SIGNAL_MEANINGS = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "it aborted itself",
    "SIGBUS": "bad memory access, often a full /dev/shm",
    "SIGILL": "illegal instruction: built for another processor",
    "SIGFPE": "arithmetic error",
    "SIGPIPE": "it wrote to a closed pipe",
    "SIGXCPU": "CPU time limit exceeded",
    "SIGXFSZ": "file size limit exceeded",
}
_EXIT_CODE_MEANINGS = {126: "found, but cannot be executed", 127: "command not found"}
_WAS_KILLED = re.compile(r"\bKilled\b|SIGKILL|\bexit ?code:? -9\b|signal 9\b")
#: Messages of PyTorch, CUDA, CuPy and TensorFlow about a GPU number that does not exist in the job.
_INVALID_GPU_ID = re.compile(
    r"invalid device (?:ordinal|id)\b|cudaErrorInvalidDevice\b|device >= 0 && device < num_gpus"
    r"|listed an invalid (?:GPU|Device) id|device:GPU:\d+ unknown device",
    re.IGNORECASE,
)
#: Message of NCCL, below its error, about two processes of a job on one GPU.
_DUPLICATE_GPU = "Duplicate GPU detected"


def signal_name(number: int) -> str:
    """Returns the name of a signal: "SIGKILL" for 9, "signal 40" for one without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_failure(result: AttemptResult) -> bool:
    """Returns whether the command began, ended by itself and failed."""
    return result.cause is None and result.began and result.exit_code != 0


def explain(result: AttemptResult, context: FailureContext | None = None) -> str:
    """Returns one line that explains why a command failed."""
    # Compiling their regular expressions takes 5 ms; `status` needs them only for an end that is not in the
    # store yet.
    from gpu_scheduler.core.failure.last_error import last_error, rendered_lines

    tail = context.log_tail if context is not None else ""
    text = describe_exit(result)
    error = last_error(tail, None if result.exit_code == 1 else _MAX_LINES_AFTER) or _printed_oom(tail)
    if error is not None:
        text += f": {_one_line(error, _MAX_ERROR_CHARS)}"
    if (
        result.oom_kills
        and not _is_sigkill(result)
        and _mentions_kill(rendered_lines(tail)[-_MAX_LINES_AFTER:])
    ):
        text += "; one of its processes was killed by SIGKILL, probably out of memory"
    if context is not None and context.cuda_ids and _INVALID_GPU_ID.search(tail):
        text += f"; {_gpu_id_advice(context.cuda_ids)}"
    if _DUPLICATE_GPU in tail and _DUPLICATE_GPU not in text:
        text += f"; NCCL: {_DUPLICATE_GPU}"
    return _one_line(text, _MAX_CHARS)


def _printed_oom(tail: str) -> str | None:
    """Returns the out-of-memory message of a program that caught the error and exited; None without one."""
    from gpu_scheduler.core.failure.oom import cuda_oom

    return cuda_oom(tail)


def describe_exit(result: AttemptResult) -> str:
    """Describes the exit code or the signal, and whether memory probably ran out."""
    memory = ", probably out of memory" if result.oom_kills and _is_sigkill(result) else ""
    if result.signal is not None:
        name = signal_name(result.signal)
        why = f" ({_SIGNAL_MEANINGS[name]})" if name in _SIGNAL_MEANINGS else ""
        return f"killed by {name}{why}{memory}"
    if result.exit_code is None:
        return "nothing was started"
    return f"exit code {result.exit_code}{_exit_code_meaning(result.exit_code)}{memory}"


def _exit_code_meaning(code: int) -> str:
    if code in _EXIT_CODE_MEANINGS:
        return f" ({_EXIT_CODE_MEANINGS[code]})"
    name = signal_name(code - 128) if 128 < code <= 128 + 31 else ""
    return f" (a program it ran was killed by {name})" if name.startswith("SIG") else ""


def _is_sigkill(result: AttemptResult) -> bool:
    return result.signal == _SIGKILL or result.exit_code == 128 + _SIGKILL


def _mentions_kill(lines: Sequence[str]) -> bool:
    return any(_WAS_KILLED.search(line) for line in lines)


def _gpu_id_advice(ids: tuple[int, ...]) -> str:
    given = ",".join(map(str, ids))
    return (
        f"it was given --cuda {given}, but its visible GPUs are numbered from 0: put [cuda-ids=visible]"
        " before its line, or start the scheduler with --cuda-ids visible"
    )


def _one_line(text: str, max_chars: int) -> str:
    """Returns the text as one line of printable characters, cut to `max_chars` characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= max_chars else f"{plain[: max_chars - 1].rstrip()}…"
