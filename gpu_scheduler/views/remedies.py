"""Formats the remedies for a failed job, by the kind of its failure; none if no remedy is known."""

from __future__ import annotations

from gpu_scheduler.app.oom_case import OomCase
from gpu_scheduler.core.model.state_reason import FailureKind

_CORRECT_LINE = "correct the line, which creates a new job, or create what the line names"
_REMEDIES = {
    FailureKind.SCRIPT_MISSING: _CORRECT_LINE,
    FailureKind.CONDA_MISSING: _CORRECT_LINE,
    FailureKind.ENVIRONMENT_MISSING: _CORRECT_LINE,
    FailureKind.CUDA_OPTION_UNKNOWN: (
        "the script does not accept --cuda: put [cuda=off] before its line; its GPU is number 0 anyway"
    ),
    FailureKind.GPU_USED_TWICE: (
        "two of its processes use one GPU: request one GPU for each process, such as [gpus=2], or start fewer"
        " processes"
    ),
    FailureKind.HOST_OOM: "host memory ran out: use fewer workers, smaller batches, or fewer jobs at once",
    FailureKind.MODULE_MISSING: (
        "install it in the job's environment, or name the right environment (conda=NAME or venv=PATH)"
    ),
    FailureKind.COMMAND_NOT_FOUND: (
        "check the spelling, and that the job's environment contains the program (conda=NAME, venv=PATH)"
    ),
    FailureKind.NOT_EXECUTABLE: "make it executable (chmod +x), or run it with its interpreter",
    FailureKind.DISK_FULL: "free disk space where the job writes",
    FailureKind.SHARED_MEMORY: "/dev/shm is full or too small: use fewer workers, or enlarge it",
    FailureKind.FILE_MISSING: (
        "relative paths start at the job's working folder: use absolute paths, or set [cwd=DIR]"
    ),
    FailureKind.PERMISSION: "check the owner and permissions of the path it names",
    FailureKind.GPU_DRIVER: "`doctor` checks the driver",
    FailureKind.CRASHED: "native code crashed, often because of incompatible libraries",
    FailureKind.KILLED: (
        "something outside the scheduler killed it: `journalctl -k | grep -i oom` shows whether the kernel"
        " did because host memory ran out"
    ),
    FailureKind.TERMINATED: "something outside the scheduler terminated it",
}


def failure_remedy(kind: FailureKind | None) -> str | None:
    """Returns the remedy for a failure; None if none is known. For CUDA_OOM, see `oom_remedy`."""
    return None if kind is None else _REMEDIES.get(kind)


def oom_remedy(case: OomCase) -> str:
    """Advises on a job that ran out of GPU memory: requesting more only where more exists."""
    if not (case.had_gpus_alone or case.at_limit):
        return (
            "the GPU was full, and other processes used it too: request more memory (vram= or share=), retry"
            " it with"
            " more (oom-retries=), or use a smaller batch"
        )
    one = case.gpu_count == 1
    had = (
        f"its GPU{'' if one else 's'} to itself"
        if case.had_gpus_alone
        else "the most memory that a GPU can provide"
    )
    indices = ", ".join(map(str, case.larger_gpus))
    where = f" (GPU{'' if len(case.larger_gpus) == 1 else 's'} {indices})" if case.larger_gpus else ""
    more = "two" if one else str(case.gpu_count + 1)
    return (
        f"it had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" ([gpus={case.gpu_count + 1}]) if the program can split its model"
    )
