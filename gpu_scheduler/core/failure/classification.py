"""Determines the kinds of a failure from its exit code, its signal and the program's error message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM

from gpu_scheduler.core.failure.log_patterns import DEVICE_ERROR
from gpu_scheduler.core.model.state_reason import FailureKind

_WRONG_CALL, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_PRECEDENCE = tuple(FailureKind)

#: For each kind, a pattern for the error messages of Python, the shell, argparse and CUDA that indicate it.
_ERRORS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            FailureKind.CUDA_OPTION_UNKNOWN,
            r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).{0,200}--cuda\b",
        ),
        (FailureKind.GPU_USED_TWICE, r"Duplicate GPU detected"),
        (FailureKind.CUDA_FORKED, r"Cannot re-initialize CUDA in forked subprocess"),
        (FailureKind.DEVICE_ERROR, DEVICE_ERROR.pattern),
        (FailureKind.HOST_OOM, r"(?<!OutOf)MemoryError|Cannot allocate memory"),
        (FailureKind.MODULE_MISSING, r"ModuleNotFoundError|ImportError"),
        (FailureKind.COMMAND_NOT_FOUND, r"command not found"),
        (FailureKind.DISK_FULL, r"No space left on device|Disk quota exceeded"),
        (FailureKind.SHARED_MEMORY, r"/dev/shm|shared memory"),
        (FailureKind.FILE_MISSING, r"FileNotFoundError|No such file or directory|can't open file"),
        (FailureKind.PERMISSION, r"PermissionError|Permission denied"),
        (
            FailureKind.GPU_DRIVER,
            r"no CUDA-capable device|CUDA driver version is insufficient|driver on your system is too old"
            r"|NVIDIA driver",
        ),
        (
            FailureKind.PROGRAM,
            r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|AttributeError|TypeError"
            r"|KeyError|IndexError|ZeroDivisionError|NotImplementedError)\b",
        ),
    )
)
_SIGNALS: dict[int, FailureKind] = {
    **dict.fromkeys((SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT), FailureKind.CRASHED),
    SIGKILL: FailureKind.KILLED,
    **dict.fromkeys((SIGTERM, SIGINT, SIGHUP), FailureKind.TERMINATED),
}


def failure_kinds(exit_code: int | None, signal: int | None, error: str) -> list[FailureKind]:
    """Returns every kind that fits the failure. error: the program's error message; "" if none was found."""
    kinds = [kind for kind, pattern in _ERRORS if pattern.search(error)]
    if exit_code == _NOT_FOUND:
        kinds.append(FailureKind.COMMAND_NOT_FOUND)
    elif exit_code == _NOT_EXECUTABLE:
        kinds.append(FailureKind.NOT_EXECUTABLE)
    elif exit_code == _WRONG_CALL:
        kinds.append(FailureKind.PROGRAM)
    elif signal == SIGBUS:
        kinds.append(FailureKind.SHARED_MEMORY)
    # A shell whose program was killed by a signal exits with 128 plus the signal's number.
    number = signal if signal is not None else (exit_code or 0) - 128
    return [*kinds, _SIGNALS[number]] if number in _SIGNALS else kinds


def most_specific(kinds: Iterable[FailureKind]) -> FailureKind | None:
    """Returns the kind with the most helpful remedy; None if there are no kinds."""
    return min(kinds, key=_PRECEDENCE.index, default=None)
