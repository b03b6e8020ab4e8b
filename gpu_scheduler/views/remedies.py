"""Formats the remedies for a failed job. They depend on the kind of its failure."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpu_scheduler.app.diagnosis import OomCase
from gpu_scheduler.core.model.state_reason import FailureKind
from gpu_scheduler.core.model.units import format_seconds

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
    FailureKind.CUDA_OPTION_UNKNOWN: "{cuda=off}, because the script does not accept --cuda; the job's first"
        " GPU is number 0 even without --cuda",
    FailureKind.GPU_USED_TWICE: "two processes of the job use the same GPU: request one GPU for each"
        " process, as in <gpus=2>, or start fewer processes",
    FailureKind.CUDA_FORKED: 'use the start method "spawn" of multiprocessing',
    FailureKind.GPU_ECC: "the memory of the GPU is defective (uncorrectable ECC error, see `nvidia-smi -q -d"
        " ECC`): reset the GPU (`sudo nvidia-smi --gpu-reset -i N`) or restart the machine; `pause N` keeps"
        " jobs off it",
    FailureKind.GPU_BUSY: "the GPU is busy or unavailable: its compute mode may let only one process use it"
        " (`nvidia-smi -q -d COMPUTE`; `sudo nvidia-smi -i N -c 0` changes it), or it needs a reset",
    FailureKind.FABRIC_NOT_READY: "the links between the GPUs are not ready (CUDA error 802): start the"
        " Fabric Manager (`sudo systemctl restart nvidia-fabricmanager`), whose version must be that of the"
        " driver",
    FailureKind.INVALID_GPU_NUMBER: "the program uses a GPU number that the job does not have: the job's"
        " GPUs are always numbered from 0, so use cuda:0, or request more GPUs, as in <gpus=2>",
    FailureKind.NO_KERNEL_IMAGE: "the program has no kernel image for this kind of GPU: install a build of"
        " the library (such as PyTorch) that supports it, or keep the job on other GPUs, as in <allowed=0>",
    FailureKind.KERNEL_FAULT: "code on the GPU used memory outside its data, often because of an index or a"
        " label that is too large; CUDA reports this late, so the traceback may show a later place:"
        " <env:CUDA_LAUNCH_BLOCKING=1> makes it show the right one",
    FailureKind.DEVICE_ERROR: "check the GPU with `nvidia-smi -q` and `dmesg`; it may need a reset",
    FailureKind.HOST_OOM: "host memory ran out: use fewer workers, smaller batches, or fewer jobs at once",
    FailureKind.CRLF: "the script has Windows line ends (CRLF): convert it with `sed -i 's/\\r$//' SCRIPT`",
    FailureKind.CONDA_NOT_INITIALISED: "`conda activate` needs conda to be initialised in the job's shell:"
        ' leave it out and give the job its environment (conda=NAME), or write `eval "$(conda shell.bash'
        ' hook)"` before it',
    FailureKind.ADDRESS_IN_USE: "another process uses the address (port): give the program the port that the"
        ' scheduler keeps free for the job, such as `--master_port "$MASTER_PORT"`',
    FailureKind.TOO_MANY_FILES: "the limit on open files is too low: write `ulimit -n 65536 &&` before the"
        " command, or use fewer workers",
    FailureKind.NOT_LOGGED_IN: "the program is not logged in to a service: log in once in your own shell"
        " (`wandb login`, `hf auth login`), or set its key in the job's environment (WANDB_API_KEY,"
        " HF_TOKEN, COMET_API_KEY); access to a gated model is requested on its page",
    FailureKind.END_OF_INPUT: "the program asked for input, but the standard input of a job is empty: pass"
        " the answer as an option or through a pipe, as in `echo y | …`",
    FailureKind.MODULE_MISSING: "install the module in the job's environment, or name the right environment"
        " (conda=NAME or venv=PATH)",
    FailureKind.COMMAND_NOT_FOUND: "check the spelling, and that the job's environment contains the program"
        " (conda=NAME or venv=PATH)",
    FailureKind.NOT_EXECUTABLE: "make the file executable (chmod +x), or run it with its interpreter",
    FailureKind.DISK_FULL: "free some space on the disk to which the job writes",
    FailureKind.SHARED_MEMORY: "/dev/shm is full or too small: use fewer workers, remove old files from it,"
        " or enlarge it (in a container with --shm-size or --ipc=host)",
    FailureKind.FILE_MISSING: "relative paths are looked up in the job's working folder: use absolute paths,"
        " or set [cwd=DIR]",
    FailureKind.PERMISSION: "check the owner and permissions of the path in the message",
    FailureKind.NO_GPU_VISIBLE: "the program sees no CUDA GPU: do not set CUDA_VISIBLE_DEVICES in the"
        " command or the script, use a build of the library with CUDA, and check the driver with `doctor`",
    FailureKind.GPU_DRIVER: "check the driver with `doctor`",
    FailureKind.WRONG_USAGE: "correct the arguments on its line, which adds a new job",
    FailureKind.CRASHED: "native code crashed, often because of incompatible libraries",
    FailureKind.KILLED: "something other than the scheduler killed it: `journalctl -k | grep -i oom` shows"
        " whether the kernel killed it because host memory ran out",
    FailureKind.BACKGROUND_WORK: "add `wait` at the end of the script, or {background=wait}, with which the"
        " job lasts as long as its processes; {background=ignore} if these do not matter",
    FailureKind.BROKEN_PIPE: _PIPEFAIL_OFF,
    FailureKind.GREP_IN_PIPE: _PIPEFAIL_OFF,
    FailureKind.TERMINATED: "something other than the scheduler terminated it",
}  # fmt: skip


class Remedy(NamedTuple):
    """A way out of a failure. restarts: whether this runs the job again, or a new one instead."""

    text: str
    restarts: bool = False


def failure_remedy(
    kind: FailureKind | None, job_id: int | None = None, *, is_script: bool = False
) -> Remedy | None:
    """Returns the remedy for a failure; None if none is known. For CUDA_OOM, see `oom_remedy`.

    job_id: the job, if it has no line that the user can correct; is_script: whether it has no command either.
    """
    remedy = None if kind is None else _REMEDIES.get(kind)
    if job_id is not None and remedy is _CORRECT_LINE:
        remedy = _CREATE_FILES
    elif job_id is not None and kind is FailureKind.WRONG_USAGE:
        remedy = "submit it again with other arguments" if is_script else "{command='…'} with other arguments"
    if remedy is None:
        return None
    is_set = job_id is not None and remedy.startswith("{")
    return Remedy(_with_forms(remedy, job_id), is_set or kind is FailureKind.WRONG_USAGE)


def timeout_remedy(timeout_s: float | None, job_id: int | None) -> Remedy:
    """Returns the remedy for a job that reached its time limit. job_id: as for `failure_remedy`."""
    limit = "its time limit" if timeout_s is None else f"its time limit of {format_seconds(timeout_s)}"
    remedy = f"raise {limit}, as with <timeout=…>" if job_id is None else f"{{timeout=…}} to raise {limit}"
    return Remedy(_with_forms(remedy, job_id), job_id is not None)


def _with_forms(remedy: str, job_id: int | None) -> str:
    """Fills in how an attribute is set: {gpus=2} as an instruction, <gpus=2> as an example."""
    line, job = (r"put [\1] before its line", r"[\1]"), rf"`retry {job_id} --set \1`"
    form, example = line if job_id is None else (f"run {job}", job)
    return re.sub(r"<([\w:=…]+)>", example, re.sub(r"\{([\w='…]+)\}", form, remedy))


def oom_remedy(case: OomCase, job_id: int | None = None) -> Remedy:
    """Returns the remedy for a job that ran out of GPU memory. job_id: as for `failure_remedy`.

    Advises requesting more memory only if the GPUs that the job had can provide more.
    """
    return Remedy(_memory_remedy(case, job_id) + (_FRAGMENTED if case.is_fragmented else ""))


def _memory_remedy(case: OomCase, job_id: int | None) -> str:
    if not (case.had_gpus_alone or case.at_limit):
        how = "" if job_id is None else f", as with `retry {job_id} --set vram=…`"
        return (
            "the GPU was full, and other processes used it too: request more memory (vram= or"
            f" share={how}), let retries request more (oom-retries=), or use a smaller batch"
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
    return _with_forms(
        f"the job had {had}: use a smaller batch, a larger GPU{where}, or {more} GPUs"
        f" (<gpus={case.gpu_count + 1}>) if the program can split its model",
        job_id,
    )
