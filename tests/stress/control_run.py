"""Negative control: a `run` that checks which GPUs are free, but claims nothing.

The stress test must fail on it.

Usage: python -m tests.stress.control_run SIM LOCKS TOTAL COUNT MIB GPUS COMMAND…

It respects the claims of others in the folder LOCKS and the memory in use in the simulation's folder SIM. Two
of these programs that check at about the same time choose the same GPU, and so does a scheduler that places a
job after the check.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gpu_scheduler.runner.locks import free_ranges
from gpu_scheduler.system import simulated_usage
from gpu_scheduler.system.gpu_claims import read_gpu_locks

_POLL_S = 0.05


def main(
    sim: str, locks: str, total_mib: int, count: int, mib: int, gpus: list[int], command: list[str]
) -> None:
    """Waits until `count` of these GPUs have `mib` MiB, and executes the command."""
    while True:
        uses = simulated_usage.read_usages(sim)
        free = {}
        for gpu in gpus:
            used = sum(use.gpus.get(gpu, 0) for use in uses)
            ranges = free_ranges(read_gpu_locks(Path(locks), f"SIM-{gpu}"), total_mib)
            free[gpu] = min(total_mib - used, sum(end - start for start, end in ranges))
        best = sorted((gpu for gpu in gpus if free[gpu] >= mib), key=lambda gpu: -free[gpu])[:count]
        if len(best) == count:
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(best)))}
            os.execvpe(command[0], command, env)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    here, there, total, number, amount, allowed = sys.argv[1:7]
    choice = [int(gpu) for gpu in allowed.split(",")]
    main(here, there, int(total), int(number), int(amount), choice, sys.argv[7:])
