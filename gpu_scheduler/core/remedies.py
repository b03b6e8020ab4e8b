"""What to do about a job that failed, by what is told of its end. Of an unknown end nothing is said."""

from __future__ import annotations

import re

_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (r"numbered from 0: put \[cuda-ids", ""),  # it stands there already
        (
            r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).*--cuda\b",
            "the script takes no --cuda: put [cuda=off] before its line; its GPU is number 0 all the same",
        ),
        (
            r"CUDA out of memory|CUDA error: out of memory|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED"
            r"|RESOURCE_EXHAUSTED|cudaErrorMemoryAllocation",
            "the GPU was full: ask for a larger share, for fewer jobs beside it, or make the batch smaller",
        ),
        (
            r"probably out of memory|MemoryError|Cannot allocate memory",
            "the machine's own memory ran out: fewer workers, smaller batches, or fewer jobs at once",
        ),
        (
            r"ModuleNotFoundError|ImportError",
            "install it in the environment of the job, or name the right one (conda=NAME or venv=PATH)",
        ),
        (
            r"command not found",
            "check the spelling, and that the job's environment has that program (conda=NAME, venv=PATH)",
        ),
        (r"cannot be executed", "make it executable (chmod +x), or call it by its interpreter"),
        (r"No space left on device|Disk quota exceeded", "free disk space where the job writes"),
        (r"/dev/shm|shared memory", "/dev/shm is full or too small: use fewer workers, or give it more room"),
        (
            r"FileNotFoundError|No such file or directory|can't open file",
            "relative paths begin at the working folder of the job: write absolute ones, or [cwd=DIR]",
        ),
        (r"PermissionError|Permission denied", "look at owner and permissions of what it names"),
        (
            r"no CUDA-capable device|CUDA driver version is insufficient|driver on your system is too old"
            r"|NVIDIA driver",
            "`doctor` looks at the driver",
        ),
        (
            r"killed by SIG(?:SEGV|ILL|BUS|FPE|ABRT)",
            "a fault in native code, often of libraries that do not fit together",
        ),
        (r"killed by SIGKILL", "somebody or something ended it by force: see the journal of the machine"),
        (r"killed by SIG(?:TERM|INT|HUP)", "somebody or something outside the scheduler ended it"),
    )
)


def remedy(told: str) -> str | None:
    """The first remedy that fits an explanation of core.explain; None where none does."""
    return next((text or None for pattern, text in _REMEDIES if pattern.search(told)), None)
