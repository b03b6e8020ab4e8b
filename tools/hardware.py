"""Checks the probes on the real GPUs of this machine and prints a table for docs/hardware.md.

    python tools/hardware.py [--rounds N] [--torch PYTHON]

NVML and GPUtil must report the same GPUs in the same order, with total memory within 2 %, and with memory in
use within 5 % of the GPU's memory or 512 MiB (because NVML also counts what the driver reserves for itself).

--torch names the Python of an environment that has PyTorch, and adds two checks. According to NVML, the
memory of a process must grow by what PyTorch allocates, within 5 %. A job that runs out of GPU memory must
have its peak measured and must be run again by its OOM retry.

Exits with 0 if every check passes, 1 if a check fails, and 4 if no GPU can be read.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes import Probe
from gpu_scheduler.gpus.probes.probe_process import make_probe

#: A program that allocates GPU memory with PyTorch.
TORCH_JOB = Path(__file__).with_name("torchjob.py")
#: MiB that this program allocates.
ALLOCATED_MIB = 2048
#: Fraction of this amount by which NVML and PyTorch may differ.
TOLERANCE = 0.05
#: Seconds that the scheduler may take for a job with two attempts, each of which loads PyTorch.
TIMEOUT_S = 300.0


def probe_differences(nvml: Sequence[GpuSample], gputil: Sequence[GpuSample]) -> list[str]:
    """Returns a text for each difference between the samples of the two probes."""
    if [gpu.uuid for gpu in nvml] != [gpu.uuid for gpu in gputil]:
        return [f"different GPUs or another order: {[g.uuid for g in nvml]} and {[g.uuid for g in gputil]}"]
    found = []
    for one, other in zip(nvml, gputil, strict=True):
        where = f"GPU {one.index}"
        if one.name != other.name:
            found.append(f"{where}: {one.name!r} and {other.name!r}")
        if not one.total_mib or not other.total_mib:
            found.append(f"{where}: its memory is unknown ({one.total_mib} and {other.total_mib} MiB)")
            continue
        if abs(one.total_mib - other.total_mib) > 0.02 * one.total_mib:
            found.append(f"{where}: {one.total_mib} and {other.total_mib} MiB in total")
        if one.used_mib is None or other.used_mib is None:
            found.append(f"{where}: its memory in use is unknown ({one.used_mib} and {other.used_mib} MiB)")
        elif abs(one.used_mib - other.used_mib) > max(512, 0.05 * one.total_mib):
            found.append(f"{where}: {one.used_mib} and {other.used_mib} MiB in use")
    return found


def compare_growth(before: tuple[int | None, int], after: tuple[int | None, int]) -> tuple[str, list[str]]:
    """Compares the memory that NVML and PyTorch report for one process. Returns a text and the problems.

    before, after: MiB according to NVML (None if it does not list the process), and MiB reserved by PyTorch.
    """
    if before[0] is None or after[0] is None:
        return "NVML does not list the process by its number here (a container?): its peak would be n/a", []
    nvml, torch = after[0] - before[0], after[1] - before[1]
    said = (
        f"one process: {after[0]} MiB by NVML, {after[1]} MiB by PyTorch; grown by {nvml} and {torch} MiB;"
        f" the rest, {before[0] - before[1]} MiB, is its CUDA context"
    )
    return said, [] if abs(nvml - torch) <= TOLERANCE * torch else ["NVML and PyTorch differ on a process"]


def measure_process(python: str, probe: Probe, uuid: str) -> tuple[str, list[str]]:
    """Starts a process that allocates memory on this GPU. Returns the same as `compare_growth`."""
    with subprocess.Popen(
        [python, str(TORCH_JOB), "hold", str(ALLOCATED_MIB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
    ) as job:  # fmt: skip
        assert job.stdin is not None
        assert job.stdout is not None
        looks: list[tuple[int | None, int]] = []
        while len(looks) < 2:
            line = job.stdout.readline()
            if not line:
                return "", [f"{TORCH_JOB.name} hold: exit code {job.wait()}"]
            told = json.loads(line)
            looks.append((_process_memory_mib(probe, uuid, told["pid"]), told["reserved_mib"]))
            job.stdin.write("\n")
            job.stdin.flush()
    return compare_growth(looks[0], looks[1])


def _process_memory_mib(probe: Probe, uuid: str, pid: int) -> int | None:
    [gpu] = [gpu for gpu in probe.sample() if gpu.uuid == uuid]
    return next((one.used_mib for one in gpu.processes or () if one.pid == pid), None)


def check_retry(ends: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Checks that the job that ran out of memory was retried correctly. Returns a text and the problems.

    ends: the events that end an attempt.
    """
    said = "; ".join(
        f"attempt {one['attempt']}: {one['outcome']}, peaks {one['peaks']} MiB, {one.get('reason') or 'done'}"
        for one in ends
    )
    if [one["outcome"] for one in ends] != ["failed", "completed"]:
        return said, ["the job that ran out of GPU memory did not complete at its second attempt"]
    if ends[0]["min_vram"] is None:
        return said, ["the CUDA OOM was not recognised"]
    peaks = [peak for peak in ends[1]["peaks"] if peak is not None]
    return said, [f"a peak under {ALLOCATED_MIB} MiB"] if peaks and min(peaks) < ALLOCATED_MIB else []


def run_oom_job(python: str) -> tuple[str, list[str]]:
    """Runs a job that runs out of GPU memory in a scheduler of its own. Returns the same as `check_retry`."""
    command = f"exec {shlex.quote(python)} {shlex.quote(str(TORCH_JOB))} oom {ALLOCATED_MIB}"
    words = ["jobs.txt", "--gpu-probe", "nvml", "--poll", "0.5", "--log-dir", "logs"]
    with TemporaryDirectory() as folder:
        Path(folder, "jobs.txt").write_text(f"[vram={ALLOCATED_MIB} oom-retries=1] {command}\n")
        subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", *words], cwd=folder, timeout=TIMEOUT_S, check=False
        )
        lines = Path(folder, "logs", "journal.jsonl").read_text().splitlines()
    return check_retry(
        [event for event in map(json.loads, lines) if "attempt" in event and "outcome" in event]
    )


def main(rounds: int = 5, torch: str | None = None) -> int:
    """Prints the table, the results of the PyTorch checks, and the problems; returns the exit code."""
    probes = {"nvml": make_probe("nvml"), "gputil": make_probe("gputil")}
    took: dict[str, list[float]] = {name: [] for name in probes}
    samples: dict[str, tuple[GpuSample, ...]] = {}
    try:
        for _ in range(rounds):
            for name, probe in probes.items():
                began = time.perf_counter()
                samples[name] = probe.sample()
                took[name].append(1000 * (time.perf_counter() - began))
    except GpuStateError as error:
        print(f"no GPU can be read: {error}", file=sys.stderr)
        return error.exit_code
    print("| GPU | name | probe | total MiB | used MiB | load % | processes | fault | ms per query |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in probes:
        for gpu in samples[name]:
            listed = "not listed" if gpu.processes is None else len(gpu.processes)
            took_ms = statistics.median(took[name])
            print(
                f"| {gpu.index} | {gpu.name} | {name} | {gpu.total_mib} | {gpu.used_mib} "
                f"| {gpu.load_percent} | {listed} | {gpu.fault or '-'} | {took_ms:.1f} |"
            )
    wrong = probe_differences(samples["nvml"], samples["gputil"])
    print("\n" + ("\n".join(wrong) if wrong else "NVML and GPUtil agree."))
    if torch is None:
        print("Nothing was run on a GPU; --torch PYTHON, with a Python that has PyTorch, does so.")
        return 1 if wrong else 0
    for said, faults in (measure_process(torch, probes["nvml"], samples["nvml"][0].uuid), run_oom_job(torch)):
        print("\n".join(["", *filter(None, [said]), *faults]))
        wrong += faults
    return 1 if wrong else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks the probes on the real GPUs of this machine.")
    parser.add_argument("--rounds", type=int, default=5, help="Number of queries to each probe (default: 5)")
    parser.add_argument("--torch", metavar="PYTHON", help="Python of an environment with PyTorch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(**vars(_parse_arguments())))
