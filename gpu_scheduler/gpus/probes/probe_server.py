"""The main program of the probe process: answers each query line on stdin with one line of JSON on stdout.

A thread reads stdin. When the scheduler ends, stdin is closed, and the thread ends this process together with
any `nvidia-smi` that it is waiting for, even if a query hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from queue import SimpleQueue
from typing import Any, get_args

from msgspec import Struct, to_builtins

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import GpuFault, GpuProcess, GpuSample, Snapshot
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, Probe, ProbeError, as_probe_error


def main() -> None:
    """Answers queries until stdin is closed. Arguments: --kind KIND [--simulate TEXT] [--sim-dir FOLDER]."""
    parser = argparse.ArgumentParser(prog="gpu_scheduler.gpus.probes.probe_server")
    parser.add_argument("--kind", choices=get_args(ProbeKind), required=True)
    parser.add_argument("--simulate")
    parser.add_argument("--sim-dir")
    options = parser.parse_args()
    # Redirect stdout to stderr, so that anything a driver's library prints cannot mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    questions: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    probe = make_probe(options.kind, options.simulate, options.sim_dir)
    while True:
        number = questions.get()
        os.write(answers, encode(number, take_sample(probe)))


def make_probe(kind: ProbeKind, simulate: str | None = None, sim_dir: str | None = None) -> Probe:
    """Returns a probe of this kind. Does not read any GPU yet, and imports only what the kind needs.

    simulate  the text of `--simulate`, such as "4" or "2:24G,2:80G". It overrides `kind`.
    sim_dir   the folder in which simulated jobs write their usage, or None if there is no usage.

    Raises ValueError, with the accepted forms, for an invalid `simulate`.
    """
    if simulate is not None or kind == "simulated":
        from gpu_scheduler.gpus.probes.simulated import SimulatedProbe, parse_simulate

        return SimulatedProbe(parse_simulate(simulate if simulate is not None else "4"), sim_dir)
    if kind == "nvml":
        from gpu_scheduler.gpus.probes.nvml import NvmlProbe

        return NvmlProbe()
    if kind == "gputil":
        from gpu_scheduler.gpus.probes.gputil import GputilProbe

        return GputilProbe()
    return AutoProbe()


class AutoProbe:
    """A probe that uses NVML if it works, otherwise GPUtil. Tries both in this order at each sample.

    note: why NVML was not used for the newest sample; "" if it was.
    """

    def __init__(self) -> None:
        self._probes = make_probe("nvml"), make_probe("gputil")
        self.note = ""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        errors: list[ProbeError] = []
        samples: tuple[GpuSample, ...] | None = None
        for probe in self._probes:
            try:
                samples = probe.sample()
            except Exception as error:  # noqa: BLE001 - a library that fails in any way must not hide the GPUs
                errors.append(as_probe_error(error))
                continue
            if samples:
                instead = "the GPUs are read with nvidia-smi instead of NVML, so their processes are unknown"
                self.note = f"{errors[0]}; {instead}" if errors else ""
                return samples
        if samples is not None:
            return samples
        # Installing the driver is the general remedy, so a specific one comes first.
        remedies = [error.remedy for error in errors if error.remedy != DRIVER_REMEDY]
        raise ProbeError("; ".join(map(str, errors)), (*remedies, DRIVER_REMEDY)[0])


def take_sample(probe: Probe) -> Snapshot | ProbeFailure:
    """Takes a sample and returns it, or the reason why it failed.

    The time of the sample is the time before the first value was read, so that no value is older.
    """
    taken_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        gpus = probe.sample()
    except Exception as error:  # noqa: BLE001 - any error of a driver's library must not end this process
        failure = as_probe_error(error)
        return ProbeFailure(str(failure), failure.remedy)
    return Snapshot(taken_at, gpus, getattr(probe, "note", ""))


def _listen(questions: SimpleQueue[int]) -> None:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            questions.put(int(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class ProbeFailure(Struct, frozen=True):
    """The reason why a query failed. remedy: advice for the user; "" if there is none."""

    text: str
    remedy: str = ""


def encode(number: int, answer: Snapshot | ProbeFailure) -> bytes:
    """Returns the answer to query `number` as one line that ends with a newline."""
    return json.dumps({"number": number, **to_builtins(answer)}).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Snapshot | ProbeFailure]:
    """Decodes a line that `encode` wrote. Raises ValueError for any other line."""
    try:
        raw = json.loads(line)
        number = int(raw["number"])
        if "text" in raw:
            return number, ProbeFailure(str(raw["text"]), str(raw["remedy"]))
        gpus = tuple(_gpu(gpu) for gpu in raw["gpus"])
        return number, Snapshot(float(raw["taken_at"]), gpus, str(raw["note"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"invalid answer from the probe: {line[:200]!r}") from error


def _gpu(raw: dict[str, Any]) -> GpuSample:
    processes, fault = raw.pop("processes"), raw.pop("fault")
    return GpuSample(
        **raw,
        processes=None if processes is None else tuple(GpuProcess(**process) for process in processes),
        fault=None if fault is None else GpuFault.from_values(fault),
    )
