"""A simulated training job. It "uses" memory on simulated GPUs for a while and then ends as its options say.

    python -m gpu_scheduler.simjob --vram 8000 --ramp 2 --hold 5 [--oom] [--exit 3] [--load 90]

The job uses the GPUs in CUDA_VISIBLE_DEVICES, as a real job does, or the GPUs in --gpus, like a script that
sets the variable itself. GPU_SCHEDULER_SIM contains the path of the simulation's folder; without it, the job
only prints. If the job is killed, its usage file remains but is ignored.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence

from gpu_scheduler.system import simulated_usage

STEPS_PER_S = 5


class OutOfMemory(Exception):
    """A simulated GPU has less free memory than the job requested."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns 1 if a GPU is out of memory, 130 after Ctrl-C, otherwise the value of --exit."""
    options = _parser().parse_args(argv)
    folder = os.environ.get(simulated_usage.FOLDER_VARIABLE)
    gpus = visible_gpus(options.gpus or os.environ.get("CUDA_VISIBLE_DEVICES"))
    where = f"GPU{'' if len(gpus) == 1 else 's'} {', '.join(map(str, gpus))}"
    print(f"simjob {os.getpid()}: {options.vram} MiB on {where}", flush=True)
    try:
        _ramp(folder, gpus, options.vram, options.ramp, options.load)
        if options.oom:
            raise OutOfMemory(oom_message(gpus[0], options.vram, 0))
        _sleep(options.hold)
    except OutOfMemory as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if folder is not None:
            simulated_usage.remove_usage(folder)
    print(f"simjob {os.getpid()}: done", flush=True)
    return int(options.exit)


def visible_gpus(variable: str | None) -> tuple[int, ...]:
    """Returns the simulated GPUs in the text of CUDA_VISIBLE_DEVICES; GPU 0 if the variable is not set.

    Each item is an index or has the form SIM-n. Raises SystemExit for any other item, because CUDA would then
    find no device.
    """
    if variable is None:
        return (0,)
    words = [word.strip().removeprefix("SIM-") for word in variable.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,3}", word) for word in words):
        raise SystemExit(
            f"simjob: CUDA_VISIBLE_DEVICES={variable!r} is not a list of simulated GPUs, such as 0 or SIM-0"
        )
    return tuple(int(word) for word in words)


def oom_message(gpu: int, wanted_mib: int, free_mib: int) -> str:
    """Returns the message with which PyTorch reports a full GPU."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_mib / 1024:.2f} GiB. "
        f"GPU {gpu} has {free_mib / 1024:.2f} GiB free."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.simjob",
        description="A simulated job that uses memory on simulated GPUs.",
        epilog="example: python -m gpu_scheduler.simjob --vram 8000 --ramp 2 --hold 5",
    )
    for name, kind, default, unit, text in (
        ("--vram", int, 1000, "MIB", "MiB of memory to use on each GPU"),
        ("--ramp", float, 0.0, "S", "seconds over which to allocate the memory"),
        ("--hold", float, 1.0, "S", "seconds for which to keep the memory"),
        ("--load", float, 90.0, "PERCENT", "simulated load in percent"),
    ):
        help_text = f"{text} (default: {default:g})"
        parser.add_argument(name, type=kind, default=default, metavar=unit, help=help_text)
    parser.add_argument("--oom", action="store_true", help="run out of GPU memory after the ramp")
    parser.add_argument("--gpus", metavar="LIST", help="GPUs to use instead of CUDA_VISIBLE_DEVICES")
    parser.add_argument("--exit", type=int, default=0, metavar="CODE", help="exit code (default: 0)")
    return parser


def _ramp(folder: str | None, gpus: Sequence[int], vram: int, ramp_s: float, load: float) -> None:
    """Allocates the memory in equal steps. Raises OutOfMemory if a GPU has too little free memory."""
    steps = max(1, int(ramp_s * STEPS_PER_S))
    begun = time.monotonic()
    has = 0
    for step in range(1, steps + 1):
        wants = vram * step // steps
        if folder is not None:
            _allocate(folder, gpus, has, wants, load)
        has = wants
        print(f"simjob {os.getpid()}: {has} of {vram} MiB", flush=True)
        _sleep(begun + ramp_s * step / steps - time.monotonic())


def _allocate(folder: str, gpus: Sequence[int], current_mib: int, target_mib: int, load: float) -> None:
    with simulated_usage.locked(folder):
        for gpu in gpus:
            free = simulated_usage.free_mib(folder, gpu)
            if free is not None and target_mib - current_mib > free:
                raise OutOfMemory(oom_message(gpu, target_mib - current_mib, free))
        simulated_usage.write_usage(folder, {gpu: target_mib for gpu in gpus}, load)


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


if __name__ == "__main__":
    sys.exit(main())
