"""The main program of the probe process: answers each line on stdin with one on stdout; ends with stdin.

A reader thread watches stdin, so that the end of the scheduler also ends this process and an `nvidia-smi`
that it waits for, even while a query hangs.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from queue import SimpleQueue
from typing import get_args

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import Snapshot
from gpu_scheduler.gpus.probes import Probe, ProbeError, make_probe
from gpu_scheduler.gpus.probes.wire import ProbeFailure, encode


def main() -> None:
    """Serves until stdin closes. Arguments: --kind KIND [--simulate TEXT] [--sim-dir FOLDER]."""
    parser = argparse.ArgumentParser(prog="gpu_scheduler.gpus.probes.probe_server")
    parser.add_argument("--kind", choices=get_args(ProbeKind), required=True)
    parser.add_argument("--simulate")
    parser.add_argument("--sim-dir")
    options = parser.parse_args()
    # Output that a driver's library prints must not mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    questions: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    probe = make_probe(options.kind, options.simulate, options.sim_dir)
    while True:
        number = questions.get()
        os.write(answers, encode(number, take_sample(probe)))


def take_sample(probe: Probe) -> Snapshot | ProbeFailure:
    """Takes a sample; returns it or the failure. Its time is that of its start, because no value in it is
    older."""
    taken_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        gpus = probe.sample()
    except ProbeError as error:
        return ProbeFailure(str(error), error.remedy)
    except Exception as error:  # noqa: BLE001 - any error of a driver's library must not end this process
        return ProbeFailure(f"{type(error).__name__}: {error}")
    return Snapshot(taken_at, gpus)


def _listen(questions: SimpleQueue[int]) -> None:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            questions.put(int(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
