"""Prints the number of GPUs in this machine if all are idle; otherwise prints 0, and the reason on stderr.

With --simulate TEXT it prints the number of GPUs that TEXT describes.
"""

from __future__ import annotations

import os
import sys

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient, restrict_to_visible
from gpu_scheduler.gpus.probes.simulated import parse_simulate

#: MiB that the driver and a display may use on a GPU that counts as idle.
IDLE_MIB = 200


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--simulate"]:
        try:
            print(len(parse_simulate(arguments[1])))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    try:
        with ProbeClient("auto") as probe:
            gpus = probe.sample().gpus
    except GpuStateError as error:
        problem = f"no GPU is used ({str(error).splitlines()[0]})"
    else:
        managed, _ = restrict_to_visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        busy = [f"GPU {gpu.index} is in use or faulty" for gpu in gpus if not is_idle(gpu)]
        if len(managed) < len(gpus):
            busy.append("CUDA_VISIBLE_DEVICES hides some GPUs")
        problem = busy[0] if busy else ""
    if problem:
        print(problem, file=sys.stderr)
    print(0 if problem else len(gpus))
    return 0


def is_idle(gpu: GpuSample) -> bool:
    """Returns whether the GPU is idle, as far as its probe can tell."""
    if gpu.fault is not None or gpu.used_mib is None:
        return False
    if gpu.processes is None:
        return gpu.used_mib <= IDLE_MIB
    return all(process.graphics_only for process in gpu.processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
