"""Explains in one line why a job failed: exit code or signal, the error in its log, the kernel's OOM count.

A job is called "out of memory" only if the kernel's own counter agrees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals

from gpu_scheduler.core.sighting import Evidence, ResultNote

#: Most characters of the error, and of the whole explanation.
_LONGEST_ERROR = 300
_LONGEST = 700
#: With an exit code other than Python's 1, an error in the log counts only if at most this many lines follow.
_NEAR = 40
_SIGKILL = 9

_SIGNALS = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "it aborted itself",
    "SIGBUS": "bad memory access, often a full /dev/shm",
    "SIGILL": "illegal instruction: built for another processor",
    "SIGFPE": "arithmetic error",
    "SIGPIPE": "it wrote to a closed pipe",
    "SIGXCPU": "CPU time limit exceeded",
    "SIGXFSZ": "file size limit exceeded",
}
_CODES = {126: "found, but cannot be executed", 127: "command not found"}
_WAS_KILLED = re.compile(r"\bKilled\b|SIGKILL|\bexit ?code:? -9\b|signal 9\b")
#: Messages of PyTorch, CUDA, CuPy and TensorFlow about a GPU number that does not exist in the job.
_ORDINAL = re.compile(
    r"invalid device (?:ordinal|id)\b|cudaErrorInvalidDevice\b|device >= 0 && device < num_gpus"
    r"|listed an invalid (?:GPU|Device) id|device:GPU:\d+ unknown device",
    re.IGNORECASE,
)
#: Message of NCCL, below its error, about two processes of a job on one GPU.
_DUPLICATE = "Duplicate GPU detected"


def signal_name(number: int) -> str:
    """Returns the name of a signal: "SIGKILL" for 9, "signal 40" for one without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_failure(result: ResultNote) -> bool:
    """Returns whether the command began, ended by itself and failed."""
    return result.cause is None and result.began and result.exit_code != 0


def explain(result: ResultNote, evidence: Evidence | None = None) -> str:
    """Returns one line that explains why a command failed."""
    # Compiling their regular expressions takes 5 ms; `status` needs them only for an end that is not in the
    # store yet.
    from gpu_scheduler.core.lasterror import last_error, text_lines

    tail = evidence.tail if evidence is not None else ""
    text = ended(result)
    error = last_error(tail, None if result.exit_code == 1 else _NEAR) or _own_words(tail)
    if error is not None:
        text += f": {_line(error, _LONGEST_ERROR)}"
    if result.oom_kills and not _is_sigkill(result) and _killed_one(text_lines(tail)[-_NEAR:]):
        text += "; one of its processes was killed by SIGKILL, probably out of memory"
    if evidence is not None and evidence.ids and _ORDINAL.search(tail):
        text += f"; {_ordinal_advice(evidence.ids)}"
    if _DUPLICATE in tail and _DUPLICATE not in text:
        text += f"; NCCL: {_DUPLICATE}"
    return _line(text, _LONGEST)


def _own_words(tail: str) -> str | None:
    """Returns the out-of-memory message of a program that caught the error and exited; None without one."""
    from gpu_scheduler.core.oom import cuda_oom

    return cuda_oom(tail)


def ended(result: ResultNote) -> str:
    """Describes the exit code or the signal, and whether memory probably ran out."""
    memory = ", probably out of memory" if result.oom_kills and _is_sigkill(result) else ""
    if result.signal is not None:
        name = signal_name(result.signal)
        why = f" ({_SIGNALS[name]})" if name in _SIGNALS else ""
        return f"killed by {name}{why}{memory}"
    if result.exit_code is None:
        return "nothing was started"
    return f"exit code {result.exit_code}{_code_words(result.exit_code)}{memory}"


def _code_words(code: int) -> str:
    if code in _CODES:
        return f" ({_CODES[code]})"
    name = signal_name(code - 128) if 128 < code <= 128 + 31 else ""
    return f" (a program it ran was killed by {name})" if name.startswith("SIG") else ""


def _is_sigkill(result: ResultNote) -> bool:
    return result.signal == _SIGKILL or result.exit_code == 128 + _SIGKILL


def _killed_one(lines: Sequence[str]) -> bool:
    return any(_WAS_KILLED.search(line) for line in lines)


def _ordinal_advice(ids: tuple[int, ...]) -> str:
    given = ",".join(map(str, ids))
    return (
        f"it was given --cuda {given}, but its visible GPUs are numbered from 0: put [cuda-ids=visible]"
        " before its line, or start the scheduler with --cuda-ids visible"
    )


def _line(text: str, longest: int) -> str:
    """Returns the text as one line of printable characters, cut to `max_chars` characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1].rstrip()}…"
