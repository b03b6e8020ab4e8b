"""The probe's own process: answers each line on stdin with one on stdout, and ends when stdin closes.

A reader thread watches stdin, so that the end of the scheduler ends this process, and the `nvidia-smi` that
it may be waiting for, also while a query hangs. Refuses to know when or why it is asked.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from queue import SimpleQueue

from gpu_scheduler.core.gpu import Snapshot
from gpu_scheduler.probes import KINDS, Probe, ProbeError, make_probe
from gpu_scheduler.probes.wire import ProbeFailure, encode


def main() -> None:
    """Serves until stdin closes. Arguments: --kind KIND [--simulate TEXT] [--sim-dir FOLDER]."""
    parser = argparse.ArgumentParser(prog="gpu_scheduler.probes.serve")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--simulate")
    parser.add_argument("--sim-dir")
    said = parser.parse_args()
    # Whatever a driver's library prints must not end up between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    questions: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    probe = make_probe(said.kind, said.simulate, said.sim_dir)
    while True:
        number = questions.get()
        os.write(answers, encode(number, look(probe)))


def look(probe: Probe) -> Snapshot | ProbeFailure:
    """One sample, or why there is none. Stamped with when it was begun: no value in it is older than that."""
    taken_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        gpus = probe.sample()
    except ProbeError as error:
        return ProbeFailure(str(error), error.remedy)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library raises is the answer, not our end
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
