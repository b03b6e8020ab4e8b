"""Takes memory of the first GPU that it sees, by PyTorch: a job for tools/hardware.py.

    python torchjob.py hold MIB     tells what it has after a first tensor; after a line on its standard input
                                    takes MIB more and tells again; ends at the next line
    python torchjob.py oom MIB      asks for twice what the GPU has in its first attempt; in a later one holds
                                    MIB for a second and a half

It tells lines of JSON: its pid, and the MiB that PyTorch has reserved of the GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

MIB = 1 << 20
#: Seconds for which a job holds what it took, several samples long.
HELD_S = 1.5


def take(mib: int) -> torch.Tensor:
    """A tensor of that size on the GPU. Raises torch.OutOfMemoryError."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda:0")


def tell() -> None:
    """What PyTorch has of the GPU now."""
    reserved = torch.cuda.memory_reserved(0) // MIB
    print(json.dumps({"pid": os.getpid(), "reserved_mib": reserved}), flush=True)


def main(kind: str, mib: int) -> int:
    """See above."""
    held = [take(1)]
    if kind == "hold":
        tell()
        sys.stdin.readline()
        held.append(take(mib))
        tell()
        sys.stdin.readline()
        return 0
    if os.environ["GPU_SCHEDULER_ATTEMPT"] == "1":
        held.append(take(2 * torch.cuda.get_device_properties(0).total_memory // MIB))
    held.append(take(mib))
    tell()
    time.sleep(HELD_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
