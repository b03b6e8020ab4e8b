"""Negative control: a scheduler that places jobs by the memory in use. The stress test must fail on it.

It samples the GPUs periodically, and starts jobs that fit into the free memory minus the declared memory of
jobs that it has started since the sample. The next sample replaces this sum, so memory that a job has not
allocated by then counts as free again.

Usage: python -m tests.stress.control_memory JOBS_FILE SIMULATION GPUS MIB
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from gpu_scheduler.system import simulated_usage

_EVERY_S = 0.2
_MARGIN_MIB = 512
_LINE = re.compile(r"\[vram=(\d+)G\] (.+)")


def main(jobs_file: Path, sim: Path, gpus: int, total_mib: int) -> None:
    """Runs the lines of the jobs file until this process is killed."""
    sim.mkdir(parents=True, exist_ok=True)
    simulated_usage.write_json(str(sim / "cards.json"), {str(gpu): total_mib for gpu in range(gpus)})
    print("ready", flush=True)
    children: list[subprocess.Popen[bytes]] = []
    free: list[int] = []
    looked_at = 0.0
    while True:
        if time.monotonic() >= looked_at + _EVERY_S:
            looked_at = time.monotonic()
            uses = simulated_usage.read_usages(str(sim))
            free = [total_mib - sum(use.gpus.get(gpu, 0) for use in uses) for gpu in range(gpus)]
        for line in jobs_file.read_text().splitlines()[len(children) :]:
            found = _LINE.fullmatch(line)
            assert found is not None, line
            needs = int(found[1]) * 1024
            fits = [gpu for gpu in range(gpus) if needs + _MARGIN_MIB <= free[gpu]]
            if not fits:
                break
            free[fits[0]] -= needs
            env = {
                **os.environ,
                simulated_usage.FOLDER_VARIABLE: str(sim),
                "CUDA_VISIBLE_DEVICES": str(fits[0]),
            }
            children.append(subprocess.Popen(["bash", "-c", found[2]], env=env, start_new_session=True))
        for child in children:
            child.poll()
        time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
