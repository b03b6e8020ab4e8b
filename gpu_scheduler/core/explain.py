"""Why a job failed, in one line: its code or signal in words, the error in its log, what the kernel counted.

Pure text. Nothing is called "out of memory" unless the kernel's own counter agrees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals

from gpu_scheduler.core.sighting import Evidence, ResultNote

#: Characters of an error that are told, and of the whole line.
_LONGEST_ERROR = 300
_LONGEST = 700
#: An error in the log counts for other codes than Python's 1 only if so few lines follow it.
_NEAR = 40
_SIGKILL = 9

_SIGNALS = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "it aborted itself",
    "SIGBUS": "bad memory access, often a full /dev/shm",
    "SIGILL": "illegal instruction: built for another processor",
    "SIGFPE": "arithmetic error",
    "SIGPIPE": "nobody read its output any more",
    "SIGXCPU": "limit of processor time",
    "SIGXFSZ": "limit of file size",
}
_CODES = {126: "found, but it cannot be executed", 127: "command not found"}
_WAS_KILLED = re.compile(r"\bKilled\b|SIGKILL|\bexit ?code:? -9\b|signal 9\b")
#: What PyTorch, CUDA, CuPy and TensorFlow say of a GPU number that does not exist in the job.
_ORDINAL = re.compile(
    r"invalid device (?:ordinal|id)\b|cudaErrorInvalidDevice\b|device >= 0 && device < num_gpus"
    r"|listed an invalid (?:GPU|Device) id|device:GPU:\d+ unknown device",
    re.IGNORECASE,
)
#: What NCCL says, below its error, of two processes of a job on one GPU.
_DUPLICATE = "Duplicate GPU detected"


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 40" for one without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_failure(result: ResultNote) -> bool:
    """Whether the command began, ended by itself, and not well."""
    return result.cause is None and result.began and result.exit_code != 0


def explain(result: ResultNote, evidence: Evidence | None = None) -> str:
    """One line about a command that failed."""
    # `status` needs its expressions, 5 ms of work, only where an end is not on the record yet.
    from gpu_scheduler.core.lasterror import last_error, text_lines

    tail = evidence.tail if evidence is not None else ""
    told = ended(result)
    error = last_error(tail, None if result.exit_code == 1 else _NEAR) or _own_words(tail)
    if error is not None:
        told += f": {_line(error, _LONGEST_ERROR)}"
    if result.oom_kills and not _is_sigkill(result) and _killed_one(text_lines(tail)[-_NEAR:]):
        told += "; a process of it was killed by SIGKILL, probably out of memory"
    if evidence is not None and evidence.ids and _ORDINAL.search(tail):
        told += f"; {_ordinal_advice(evidence.ids)}"
    if _DUPLICATE in tail and _DUPLICATE not in told:
        told += f"; NCCL: {_DUPLICATE}"
    return _line(told, _LONGEST)


def _own_words(tail: str) -> str | None:
    """Finds the message of a program that caught the error and exited with it."""
    from gpu_scheduler.core.oom import cuda_oom

    return cuda_oom(tail)


def ended(result: ResultNote) -> str:
    """The exit code or the signal in words, and whether memory had run out."""
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
    return f" (a program that it ran was killed by {name})" if name.startswith("SIG") else ""


def _is_sigkill(result: ResultNote) -> bool:
    return result.signal == _SIGKILL or result.exit_code == 128 + _SIGKILL


def _killed_one(lines: Sequence[str]) -> bool:
    return any(_WAS_KILLED.search(line) for line in lines)


def _ordinal_advice(ids: tuple[int, ...]) -> str:
    given = ",".join(map(str, ids))
    return (
        f"it was given --cuda {given}, but what it sees is numbered from 0: put [cuda-ids=visible] before its"
        " line, or start the scheduler with --cuda-ids visible"
    )


def _line(text: str, longest: int) -> str:
    """The text as one line of printable characters, cut where it is too long."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1].rstrip()}…"
