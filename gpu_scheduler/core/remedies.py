"""Remedies for a job that failed, by what is told of its end and what it had, and about a GPU that takes
no job, by what placement says of it. Where nothing is known to help, nothing is said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.core.placement import ForeignUse, GpuView, Limits, foreign_use

if TYPE_CHECKING:
    from gpu_scheduler.core.needs import Need

_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (r"numbered from 0: put \[cuda-ids", ""),  # it stands there already
        (
            r"could not be started: (?:script|conda environment|virtual environment) .*"
            r"(?: does not exist|: no conda was found)",
            "mend the line, which gives a new job; or put there what the line names",
        ),
        (
            r"(?:unrecognized arguments?|no such option|unknown (?:option|argument)).*--cuda\b",
            "the script takes no --cuda: put [cuda=off] before its line; its GPU is number 0 all the same",
        ),
        (
            r"Duplicate GPU detected",
            "two of its processes use one GPU: ask for as many GPUs as it starts processes, such as"
            " [gpus=2], or start fewer",
        ),
        (
            r"probably out of memory|(?<!OutOf)MemoryError|Cannot allocate memory",
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
        (
            r"killed by SIGKILL",
            "somebody or something ended it by force: `journalctl -k | grep -i oom` tells whether the kernel"
            " did, because the machine's memory had run out",
        ),
        (r"killed by SIG(?:TERM|INT|HUP)", "somebody or something outside the scheduler ended it"),
    )
)


_FOREIGN_REMEDIES = {
    ForeignUse.MEMORY: "or declare memory ([vram=8G]); or start the scheduler with a higher --mem-threshold",
    ForeignUse.LOAD: "or start the scheduler with a higher --load-threshold",
    ForeignUse.NOT_IDLE: "or say how much of a GPU is enough, such as [vram=8G] or [share=0.5]",
}


def gpu_remedy(gpu: GpuView, need: Need, limits: Limits, why: str) -> str:
    """What to do about what `placement.obstacle` says; "" where our own jobs are in the way, which end."""
    if why == "paused":
        return f"`resume {gpu.index}` lets it take jobs again"
    if why in ("cooling", "being released"):
        return "it takes jobs again in some seconds"
    if why.startswith("quarantined"):
        return "end that process (kill -9)"
    if gpu.closed is not None:
        return f"see what `nvidia-smi -i {gpu.index}` and `doctor` say of it"
    if why == "memory unknown":
        return f"see what `nvidia-smi -q -i {gpu.index}` says of its memory"
    if not why.startswith("foreign "):
        return ""
    use = foreign_use(gpu, need, limits)
    return f"wait for its end, or end it; {_FOREIGN_REMEDIES[use]}" if use is not None else ""


@dataclass(frozen=True)
class OomCase:
    """The memory that a job had when it ran out.

    gpus: how many; alone: nobody else was on them; at_limit: it declared as much memory as a GPU can give;
    larger: the GPUs (indices) that it may use and that have more memory than its own.
    """

    gpus: int = 1
    alone: bool = False
    at_limit: bool = False
    larger: tuple[int, ...] = ()


def oom_remedy(case: OomCase) -> str:
    """Advises on a job that ran out of GPU memory: "ask for more" only where there is more."""
    if not (case.alone or case.at_limit):
        return (
            "the GPU was full, and others were on it: ask for more (vram= or share=), let it run again with"
            " more (oom-retries=), or make the batch smaller"
        )
    one = case.gpus == 1
    had = f"its GPU{'' if one else 's'} alone" if case.alone else "the most memory that a GPU can give"
    indices = ", ".join(map(str, case.larger))
    where = f" (GPU{'' if len(case.larger) == 1 else 's'} {indices})" if case.larger else ""
    more = "two" if one else str(case.gpus + 1)
    return (
        f"it had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs ([gpus={case.gpus + 1}]), if"
        " the program can split its model"
    )


def remedy(told: str) -> str | None:
    """The first remedy that fits an explanation of core.explain; None where none does."""
    return next((text or None for pattern, text in _REMEDIES if pattern.search(told)), None)
