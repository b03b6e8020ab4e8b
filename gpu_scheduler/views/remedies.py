"""Formats the remedies for a failed job. They depend on the kind of its failure."""

from __future__ import annotations

import re

from gpu_scheduler.app.oom_case import OomCase
from gpu_scheduler.core.model.state_reason import FailureKind

_CORRECT_LINE = "correct the line (this creates a new job), or create the script or environment that it names"
_CREATE_FILES = "create the script or environment that the job names"
_PIPEFAIL_OFF = "{pipefail=off} if only the last program of the pipe matters"
_FRAGMENTED = (
    "; PyTorch held much memory that it could not use: [env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True]"
    " lets it use that memory"
)
_REMEDIES = {
    FailureKind.SCRIPT_MISSING: _CORRECT_LINE,
    FailureKind.CONDA_MISSING: _CORRECT_LINE,
    FailureKind.ENVIRONMENT_MISSING: _CORRECT_LINE,
    FailureKind.CUDA_OPTION_UNKNOWN: (
        "the script does not accept --cuda: put [cuda=off] before its line; the job's first GPU is number 0"
        " even without --cuda"
    ),
    FailureKind.GPU_USED_TWICE: (
        "two processes of the job use the same GPU: request one GPU for each process, as in [gpus=2], or"
        " start fewer processes"
    ),
    FailureKind.CUDA_FORKED: 'use the start method "spawn" of multiprocessing',
    FailureKind.DEVICE_ERROR: "check the GPU with `nvidia-smi -q` and `dmesg`; it may need a reset",
    FailureKind.HOST_OOM: "host memory ran out: use fewer workers, smaller batches, or fewer jobs at once",
    FailureKind.MODULE_MISSING: (
        "install the module in the job's environment, or name the right environment (conda=NAME or venv=PATH)"
    ),
    FailureKind.COMMAND_NOT_FOUND: (
        "check the spelling, and that the job's environment contains the program (conda=NAME or venv=PATH)"
    ),
    FailureKind.NOT_EXECUTABLE: "make the file executable (chmod +x), or run it with its interpreter",
    FailureKind.DISK_FULL: "free some space on the disk to which the job writes",
    FailureKind.SHARED_MEMORY: "/dev/shm is full or too small: use fewer workers, or enlarge /dev/shm",
    FailureKind.FILE_MISSING: (
        "relative paths are looked up in the job's working folder: use absolute paths, or set [cwd=DIR]"
    ),
    FailureKind.PERMISSION: "check the owner and permissions of the path in the message",
    FailureKind.GPU_DRIVER: "check the driver with `doctor`",
    FailureKind.CRASHED: "native code crashed, often because of incompatible libraries",
    FailureKind.KILLED: (
        "something other than the scheduler killed it: `journalctl -k | grep -i oom` shows whether the kernel"
        " killed it because host memory ran out"
    ),
    FailureKind.BACKGROUND_WORK: (
        "add `wait` at the end of the script, or {background=wait}, with which the job lasts as long as its"
        " processes; {background=ignore} if these do not matter"
    ),
    FailureKind.BROKEN_PIPE: _PIPEFAIL_OFF,
    FailureKind.GREP_IN_PIPE: _PIPEFAIL_OFF,
    FailureKind.TERMINATED: "something other than the scheduler terminated it",
}


def failure_remedy(kind: FailureKind | None, job_id: int | None = None) -> str | None:
    """Returns the remedy for a failure; None if none is known. For CUDA_OOM, see `oom_remedy`.

    job_id: the job, if it has no line that the user can correct.
    """
    remedy = None if kind is None else _REMEDIES.get(kind)
    remedy = _CREATE_FILES if remedy is _CORRECT_LINE and job_id is not None else remedy
    form = r"put [\1] before its line" if job_id is None else rf"run `set {job_id} \1`"
    return remedy and re.sub(r"\{([\w=]+)\}", form, remedy)


def oom_remedy(case: OomCase) -> str:
    """Returns the remedy for a job that ran out of GPU memory.

    Advises requesting more memory only if the GPUs that the job had can provide more.
    """
    return _memory_remedy(case) + (_FRAGMENTED if case.is_fragmented else "")


def _memory_remedy(case: OomCase) -> str:
    if not (case.had_gpus_alone or case.at_limit):
        return (
            "the GPU was full, and other processes used it too: request more memory (vram= or share=), let"
            " retries request more (oom-retries=), or use a smaller batch"
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
        f"the job had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" ([gpus={case.gpu_count + 1}]) if the program can split its model"
    )
