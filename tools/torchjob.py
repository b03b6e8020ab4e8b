"""A job for tools/hardware.py, which allocates memory on the first visible GPU with PyTorch.

    python torchjob.py hold MIB     allocates a first tensor and reports its memory; after a line on standard
                                    input, allocates MIB more and reports again; ends at the next line
    python torchjob.py oom MIB      in its first attempt, requests twice the memory of the GPU; in later
                                    attempts, holds MIB for 1.5 seconds

Each report is a line of JSON with the pid and with the MiB that PyTorch has reserved on the GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

MIB = 1 << 20
#: Seconds for which a job holds its memory, long enough for several samples.
HOLD_S = 1.5


def allocate(mib: int) -> torch.Tensor:
    """Returns a tensor of that size on the GPU. Raises torch.OutOfMemoryError."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda:0")


def print_memory() -> None:
    """Prints the memory that PyTorch has reserved on the GPU."""
    reserved = torch.cuda.memory_reserved(0) // MIB
    print(json.dumps({"pid": os.getpid(), "reserved_mib": reserved}), flush=True)


def main(kind: str, mib: int) -> int:
    """Runs the job that `kind` selects: "hold" or "oom"."""
    held = [allocate(1)]
    if kind == "hold":
        print_memory()
        sys.stdin.readline()
        held.append(allocate(mib))
        print_memory()
        sys.stdin.readline()
        return 0
    if os.environ["GPU_SCHEDULER_ATTEMPT"] == "1":
        held.append(allocate(2 * torch.cuda.get_device_properties(0).total_memory // MIB))
    held.append(allocate(mib))
    print_memory()
    time.sleep(HOLD_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
