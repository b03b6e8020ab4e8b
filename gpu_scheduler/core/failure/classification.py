"""Determines the kinds of a failure from its exit code, its signal, the program's error message and its log.

`_CAUSES` is the table of the messages that name a cause. The remedies are in `views.remedies`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM

from gpu_scheduler.core.failure.log_end import CONSEQUENCE, REPORTS_ANOTHER
from gpu_scheduler.core.model.state_reason import FailureKind

_WRONG_CALL, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_PRECEDENCE = tuple(FailureKind)

#: The messages of Python, the shell, CUDA and other libraries that name a cause. Each counts as the "error"
#: that ended the program. One with "end" also counts near the end of a log that has no such error, or one
#: that follows from another; one with "log" counts anywhere in it, because other errors follow from it.
_CAUSES = tuple(
    (kind, where, re.compile(pattern, re.IGNORECASE))
    for kind, where, pattern in (
        (FailureKind.CUDA_OPTION_UNKNOWN, "end",
         r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).{0,200}--cuda\b"),
        (FailureKind.GPU_USED_TWICE, "log", r"Duplicate GPU detected"),
        (FailureKind.CUDA_FORKED, "error", r"Cannot re-initialize CUDA in forked subprocess"),
        (FailureKind.GPU_ECC, "end", r"uncorrectable ECC error|ECC_?UNCORRECTABLE|CUDA[ _]error:? \(?214\b"),
        (FailureKind.GPU_BUSY, "end", r"busy or unavailable|Devices?_?Unavailable|CUDA[ _]error:? \(?46\b"),
        (FailureKind.FABRIC_NOT_READY, "log", r"system not yet initialized|SYSTEM_?NOT_?READY\b"),
        (FailureKind.DEVICE_ERROR, "end",
         r"GPU is lost|GPU_IS_LOST|fallen off the bus|\bdevice lost\b|(?-i:\bXid\b)"
         r"|CUDA.{0,80}\binitialization error|cudaErrorInitializationError|driver initialization failed"
         r"|CUDA unknown error|CUDA[ _]error:? \(?3\b"),
        (FailureKind.INVALID_GPU_NUMBER, "end",
         r"invalid device (?:ordinal|id)\b|cudaErrorInvalidDevice\b|device >= 0 && device < num_gpus"
         r"|listed an invalid (?:GPU|Device) id|device:GPU:\d+ unknown device"),
        (FailureKind.NO_KERNEL_IMAGE, "end",
         r"no kernel image is available|NoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (FailureKind.KERNEL_FAULT, "end",
         r"device-side assert triggered|illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"
         r"|cudaErrorIllegalAddress"),
        (FailureKind.HOST_OOM, "error", r"(?<!OutOf)MemoryError|Cannot allocate memory"),
        (FailureKind.CRLF, "log",
         r"\$'[^'\n]{0,200}\\r'|\^M: bad interpreter|env: \S{0,100}\\r\W{0,3}: No such file"),
        (FailureKind.CONDA_NOT_INITIALISED, "log",
         r"Run '(?:conda|mamba) init' before|not been properly configured to use '(?:conda|mamba) activate"
         r"|(?:mamba|critical libmamba).{0,60}(?:running as a subprocess|Shell not initialized)"),
        (FailureKind.MODULE_MISSING, "error", r"ModuleNotFoundError|ImportError"),
        (FailureKind.ADDRESS_IN_USE, "error",
         r"Address already in use|EADDRINUSE|failed to listen on any local network address"),
        (FailureKind.TOO_MANY_FILES, "end", r"Too many open files|\bErrno 24\b|received 0 items of ancdata"),
        (FailureKind.SHARED_MEMORY, "error", r"/dev/shm|(?<!resource: )shared memory"),
        (FailureKind.SHARED_MEMORY, "end",
         r"NCCL WARN Call to (?:posix_fallocate|shm_open) failed|creating shared memory segment"
         r"|failed to extend /dev/shm|insufficient shared memory"),
        (FailureKind.NOT_LOGGED_IN, "error",
         r"api[_ ]key (?:is )?not (?:configured|set)|No API key|requires an API key|MissingApiToken"
         r"|Missing API token|GatedRepo|gated repo|LocalTokenNotFound|Token is required"
         r"|Invalid (?:user )?token|ClearML configuration could not be found|\b401 Client Error"),
        (FailureKind.END_OF_INPUT, "error", r"EOF when reading a line"),
        (FailureKind.COMMAND_NOT_FOUND, "error", r"command not found"),
        (FailureKind.DISK_FULL, "error", r"No space left on device|Disk quota exceeded"),
        (FailureKind.FILE_MISSING, "error", r"FileNotFoundError|No such file or directory|can't open file"),
        (FailureKind.PERMISSION, "error", r"PermissionError|Permission denied"),
        (FailureKind.NO_GPU_VISIBLE, "end",
         r"No CUDA GPUs are available|no CUDA-capable device|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
         r"|not compiled with CUDA enabled"),
        (FailureKind.GPU_DRIVER, "error",
         r"CUDA driver version is insufficient|driver on your system is too old|NVIDIA driver"),
        (FailureKind.WRONG_USAGE, "end",
         r": error: (?:unrecognized arguments|the following arguments are required|argument -)"
         r"|arguments are not used by the HfArgumentParser"),
        (FailureKind.PROGRAM, "error",
         r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|AttributeError|TypeError"
         r"|KeyError|IndexError|ZeroDivisionError|NotImplementedError)\b"),
    )
)  # fmt: skip
#: The line with which a parser of arguments begins its help.
_USAGE = re.compile(r"^usage:", re.IGNORECASE | re.MULTILINE)
_SIGNALS: dict[int, FailureKind] = {
    **dict.fromkeys((SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT), FailureKind.CRASHED),
    SIGKILL: FailureKind.KILLED,
    **dict.fromkeys((SIGTERM, SIGINT, SIGHUP), FailureKind.TERMINATED),
}


def failure_kinds(
    exit_code: int | None, signal: int | None, error: str, log: str = "", end: Sequence[str] = ()
) -> list[FailureKind]:
    """Returns every kind that fits the failure.

    error: the program's error message; "" if none was found. log: the text of its log; end: the last lines.
    """
    kinds = [kind for kind, _, pattern in _CAUSES if pattern.search(error)]
    kinds += [kind for kind, where, pattern in _CAUSES if where == "log" and pattern.search(log)]
    if not error or CONSEQUENCE.search(error) or REPORTS_ANOTHER.search(error):
        near = "\n".join(end)
        kinds += [kind for kind, where, pattern in _CAUSES if where == "end" and pattern.search(near)]
    if exit_code == _NOT_FOUND:
        kinds.append(FailureKind.COMMAND_NOT_FOUND)
    elif exit_code == _NOT_EXECUTABLE:
        kinds.append(FailureKind.NOT_EXECUTABLE)
    elif exit_code == _WRONG_CALL:
        kinds.append(FailureKind.WRONG_USAGE if _USAGE.search(log) else FailureKind.PROGRAM)
    elif signal == SIGBUS:
        kinds.append(FailureKind.SHARED_MEMORY)
    # A shell whose program was killed by a signal exits with 128 plus the signal's number.
    number = signal if signal is not None else (exit_code or 0) - 128
    return [*kinds, _SIGNALS[number]] if number in _SIGNALS else kinds


def telling_line(lines: Sequence[str]) -> str | None:
    """Returns the last line that names a cause although it does not have the form of an error, if any."""
    told = (pattern for _, where, pattern in _CAUSES if where != "error")
    found = {index for pattern in told for index, line in enumerate(lines) if pattern.search(line)}
    return lines[max(found)].strip() if found else None


def most_specific(kinds: Iterable[FailureKind]) -> FailureKind | None:
    """Returns the kind with the most helpful remedy; None if there are no kinds."""
    return min(kinds, key=_PRECEDENCE.index, default=None)
