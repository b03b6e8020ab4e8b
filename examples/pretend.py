"""Code that the examples share. They print progress like real jobs and "use" memory on simulated GPUs.

Uses only the standard library, since a job runs in the Python environment that its line names. Under `start
--simulate` the scheduler sets GPU_SCHEDULER_SIM for its jobs: a folder in which one file for each process
states the memory that it uses. Without that variable the examples only print.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: MiB of GPU memory that a model of each size uses.
SIZES = {"3b": 7000, "7b": 16000, "32b": 22000}


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all examples share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--llm", default="qwen2.5-7b-inst", help="name of the model")
    options.add_argument("--cuda", default="", help="GPU indices, filled in by the scheduler")
    options.add_argument("--mode", default="", help="word to include in the session name")
    options.add_argument("--step", type=float, default=0.05, help="seconds per step")
    return options


def announce(options: argparse.Namespace) -> None:
    """Prints the arguments and environment of the job."""
    for name, value in sorted(vars(options).items()):
        if value not in ("", None):
            print(f"  {name} = {value}")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CONDA_DEFAULT_ENV", "SEED"):
        print(f"  {name} = {os.environ.get(name, '(not set)')}")
    sys.stdout.flush()


def memory_of(llm: str) -> int:
    """Returns the MiB that a model uses, according to the size in its name; 1000 if that is unknown."""
    return next((mib for size, mib in SIZES.items() if f"-{size}-" in f"{llm}-"), 1000)


@contextmanager
def memory(mib: int, load: float = 85.0) -> Iterator[None]:
    """Uses this much memory on each of this job's simulated GPUs while the block runs."""
    folder = os.environ.get("GPU_SCHEDULER_SIM")
    gpus = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.isdigit()]
    if not folder or not gpus:
        yield
        return
    pid = os.getpid()
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        ticks = file.read().rpartition(")")[2].split()[19]
    path = os.path.join(folder, f"{pid}-{ticks}.json")
    os.makedirs(folder, exist_ok=True)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"pid": pid, "gpus": dict.fromkeys(gpus, mib), "load": load}, file)
    os.replace(f"{path}.part", path)
    try:
        yield
    finally:
        os.unlink(path)


def steps(name: str, total: int, seconds: float) -> Iterator[int]:
    """Counts to `total` with `seconds` per step; shows a progress bar on a terminal, otherwise a few
    lines."""
    tty = sys.stdout.isatty()
    for step in range(1, total + 1):
        time.sleep(seconds)
        yield step
        if tty:
            width = 30 * step // total
            print(
                f"\r{name}: {100 * step // total:3d}%|{'#' * width:<30}| {step}/{total}", end="", flush=True
            )
        elif step == total or step % max(1, total // 4) == 0:
            print(f"{name}: {step}/{total}", flush=True)
    if tty:
        print(flush=True)
