"""Suggests remedies for a failed job and for a GPU that takes no job; none where nothing is known to help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.core.scheduling.placement import ForeignUse, GpuAvailability, foreign_use
from gpu_scheduler.core.scheduling.settings import Limits

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.needs import Need

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


_FOREIGN_REMEDIES = {
    ForeignUse.MEMORY: "or declare memory ([vram=8G]); or start the scheduler with a higher --mem-threshold",
    ForeignUse.LOAD: "or start the scheduler with a higher --load-threshold",
    ForeignUse.NOT_IDLE: "or request only part of a GPU, such as [vram=8G] or [share=0.5]",
}


def gpu_remedy(gpu: GpuAvailability, need: Need, limits: Limits, obstacle: str) -> str:
    """Returns a remedy for the obstacle that placement reports for a GPU; "" if it is only our own jobs."""
    if obstacle == "paused":
        return f"`resume {gpu.index}` makes it available again"
    if obstacle in ("awaiting memory release", "being released"):
        return "it takes jobs again in a few seconds"
    if obstacle.startswith("quarantined"):
        return "end that process (kill -9)"
    if gpu.unavailable_reason is not None:
        return f"check it with `nvidia-smi -i {gpu.index}` and `doctor`"
    if obstacle == "memory unknown":
        return f"check its memory with `nvidia-smi -q -i {gpu.index}`"
    if not obstacle.startswith("foreign "):
        return ""
    use = foreign_use(gpu, need, limits)
    return f"wait for the process to end, or end it; {_FOREIGN_REMEDIES[use]}" if use is not None else ""


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
