"""Compares what NVML and GPUtil say of the real GPUs of this machine, as a table for docs/hardware.md.

    python tools/hardware.py [ROUNDS]

Exit code 0 if they agree: the same cards in the same order, totals within 2 %, memory in use within 5 % of
the card or 512 MiB, since NVML counts what the driver keeps for itself; 1 if not, 4 if no GPU can be read.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.probes import make_probe


def differences(nvml: Sequence[GpuSample], gputil: Sequence[GpuSample]) -> list[str]:
    """Where the two disagree, in words; empty if they do not."""
    if [gpu.uuid for gpu in nvml] != [gpu.uuid for gpu in gputil]:
        return [f"other cards or another order: {[g.uuid for g in nvml]} and {[g.uuid for g in gputil]}"]
    found = []
    for one, other in zip(nvml, gputil, strict=True):
        where = f"GPU {one.index}"
        if one.name != other.name:
            found.append(f"{where}: {one.name!r} and {other.name!r}")
        if not one.total_mib or not other.total_mib:
            found.append(f"{where}: its memory is not known ({one.total_mib} and {other.total_mib} MiB)")
            continue
        if abs(one.total_mib - other.total_mib) > 0.02 * one.total_mib:
            found.append(f"{where}: {one.total_mib} and {other.total_mib} MiB in all")
        if one.used_mib is None or other.used_mib is None:
            found.append(f"{where}: what is in use is not known ({one.used_mib} and {other.used_mib} MiB)")
        elif abs(one.used_mib - other.used_mib) > max(512, 0.05 * one.total_mib):
            found.append(f"{where}: {one.used_mib} and {other.used_mib} MiB in use")
    return found


def main(rounds: int = 5) -> int:
    """Print the table and what differs."""
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
    print("| GPU | name | probe | total MiB | used MiB | load % | processes | fault | ms a query |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in probes:
        for gpu in samples[name]:
            listed = "not listed" if gpu.processes is None else len(gpu.processes)
            took_ms = statistics.median(took[name])
            print(
                f"| {gpu.index} | {gpu.name} | {name} | {gpu.total_mib} | {gpu.used_mib} "
                f"| {gpu.load_percent} | {listed} | {gpu.fault or '-'} | {took_ms:.1f} |"
            )
    wrong = differences(samples["nvml"], samples["gputil"])
    print("\n" + ("\n".join(wrong) if wrong else "NVML and GPUtil agree."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
