"""Suggests remedies for a failed job; none where nothing is known to help."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (r"numbered from 0: put \[cuda-ids", ""),  # the explanation already holds the remedy
        (
            r"could not be started: (?:script|conda environment|virtual environment) .*"
            r"(?: does not exist|: no conda was found)",
            "correct the line, which creates a new job, or create what the line names",
        ),
        (
            r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).*--cuda\b",
            "the script does not accept --cuda: put [cuda=off] before its line; its GPU is number 0 anyway",
        ),
        (
            r"Duplicate GPU detected",
            "two of its processes use one GPU: request one GPU for each process, such as [gpus=2], or start"
            " fewer processes",
        ),
        (
            r"probably out of memory|(?<!OutOf)MemoryError|Cannot allocate memory",
            "host memory ran out: use fewer workers, smaller batches, or fewer jobs at once",
        ),
        (
            r"ModuleNotFoundError|ImportError",
            "install it in the job's environment, or name the right environment (conda=NAME or venv=PATH)",
        ),
        (
            r"command not found",
            "check the spelling, and that the job's environment contains the program (conda=NAME, venv=PATH)",
        ),
        (r"cannot be executed", "make it executable (chmod +x), or run it with its interpreter"),
        (r"No space left on device|Disk quota exceeded", "free disk space where the job writes"),
        (r"/dev/shm|shared memory", "/dev/shm is full or too small: use fewer workers, or enlarge it"),
        (
            r"FileNotFoundError|No such file or directory|can't open file",
            "relative paths start at the job's working folder: use absolute paths, or set [cwd=DIR]",
        ),
        (r"PermissionError|Permission denied", "check the owner and permissions of the path it names"),
        (
            r"no CUDA-capable device|CUDA driver version is insufficient|driver on your system is too old"
            r"|NVIDIA driver",
            "`doctor` checks the driver",
        ),
        (
            r"killed by SIG(?:SEGV|ILL|BUS|FPE|ABRT)",
            "native code crashed, often because of incompatible libraries",
        ),
        (
            r"killed by SIGKILL",
            "something outside the scheduler killed it: `journalctl -k | grep -i oom` shows whether the"
            " kernel did because host memory ran out",
        ),
        (r"killed by SIG(?:TERM|INT|HUP)", "something outside the scheduler terminated it"),
    )
)


@dataclass(frozen=True)
class OomCase:
    """The GPU memory that a job had when it ran out of it.

    gpu_count: how many GPUs it had; had_gpus_alone: no other process used them; at_limit: it declared as
    much memory as a GPU can give; larger_gpus: indices of the GPUs that it may use and that have more memory
    than its own.
    """

    gpu_count: int = 1
    had_gpus_alone: bool = False
    at_limit: bool = False
    larger_gpus: tuple[int, ...] = ()


def oom_remedy(case: OomCase) -> str:
    """Advises on a job that ran out of GPU memory: requesting more only where more exists."""
    if not (case.had_gpus_alone or case.at_limit):
        return (
            "the GPU was full, and others used it too: request more memory (vram= or share=), retry it with"
            " more (oom-retries=), or use a smaller batch"
        )
    one = case.gpu_count == 1
    had = (
        f"its GPU{'' if one else 's'} to itself"
        if case.had_gpus_alone
        else "the most memory that a GPU can give"
    )
    indices = ", ".join(map(str, case.larger_gpus))
    where = f" (GPU{'' if len(case.larger_gpus) == 1 else 's'} {indices})" if case.larger_gpus else ""
    more = "two" if one else str(case.gpu_count + 1)
    return (
        f"it had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" ([gpus={case.gpu_count + 1}]) if the program can split its model"
    )


def remedy(explanation: str) -> str | None:
    """Returns the first remedy that matches a failure explanation; None if no remedy matches."""
    return next((text or None for pattern, text in _REMEDIES if pattern.search(explanation)), None)
