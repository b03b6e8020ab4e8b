"""A process that uses memory on simulated GPUs, with as few imports as possible: python -I -S memory_use.py …

    job TRACE NUMBER DECLARED USED RAMP HOLD CODE asks|takes    a job, on the GPU that it was given
    other GPU PEAK LOW                                          a foreign process, controlled by its stdin

With `asks`, a job runs out of memory when a real GPU would be full. With `takes`, it gets the memory anyway,
so that a watcher can see the demand. TRACE gets a line when the job starts and another when it ends.

A foreign process uses PEAK MiB when it prints "there". After a line of input it uses LOW MiB, and then
varying amounts between LOW and PEAK. It ends at the end of its input.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time

# An isolated interpreter does not have the checkout on its path.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from gpu_scheduler.system import simulated_usage

#: Seconds between two steps of a ramp.
_STEP_S = 0.04
#: The load of each process in percent, which is so low that only memory decides which jobs share a GPU.
_LOAD = 10


class _Full(Exception):
    """The GPU has less free memory than requested."""


def _take(folder: str, gpu: int, has: int, wants: int, *, asks: bool = True) -> int:
    """Changes the memory use of this process to `wants` MiB. Raises _Full if the GPU has too little."""
    with simulated_usage.locked(folder):
        free = simulated_usage.free_mib(folder, gpu)
        if asks and free is not None and wants - has > free:
            raise _Full
        simulated_usage.write_usage(folder, {gpu: wants}, _LOAD)
    return wants


def _job(folder: str, trace: str, number: str, declared: str, *words: str) -> int:
    used, ramp_s, hold_s, code = int(words[0]), float(words[1]), float(words[2]), int(words[3])
    gpu, end = int(os.environ["CUDA_VISIBLE_DEVICES"]), ""
    _write_trace(trace, f"{number} start {os.getpid()} {gpu} {declared}")
    steps, has, begun = max(1, round(ramp_s / _STEP_S)), 0, time.monotonic()
    try:
        for step in range(1, steps + 1):
            has = _take(folder, gpu, has, used * step // steps, asks=words[4] == "asks")
            time.sleep(max(0.0, begun + ramp_s * step / steps - time.monotonic()))
        time.sleep(hold_s)
    except _Full:
        code, end = 1, " oom"
    simulated_usage.remove_usage(folder)
    _write_trace(trace, f"{number} end {code} {gpu} {declared}", end)
    return code


def _write_trace(trace: str, text: str, more: str = "") -> None:
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{text} {time.monotonic():.6f}{more}\n".encode())
    os.close(fd)


def _foreign_process(folder: str, gpu: int, peak: int, low: int) -> int:
    try:
        has = _take(folder, gpu, 0, peak)
        print("there", flush=True)
        sys.stdin.readline()
        has = _take(folder, gpu, has, low)
        while not select.select([0], [], [], random.uniform(0.01, 0.15))[0]:
            has = _take(folder, gpu, has, random.choice((peak, low, low, random.randint(low, peak))))
    except _Full:
        return 1
    finally:
        simulated_usage.remove_usage(folder)
    return 0


if __name__ == "__main__":
    sim = os.environ[simulated_usage.FOLDER_VARIABLE]
    if sys.argv[1] == "job":
        sys.exit(_job(sim, *sys.argv[2:]))
    sys.exit(_foreign_process(sim, *map(int, sys.argv[2:])))
