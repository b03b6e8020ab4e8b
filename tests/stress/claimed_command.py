"""A command that uses claimed GPU memory, with as few imports as possible.

    python -I -S claimed_command.py TRACE NUMBER SECONDS CODE USED TOTAL SIM LOCKS

It uses USED MiB on each GPU in CUDA_VISIBLE_DEVICES; each GPU has TOTAL MiB. It writes one line to TRACE when
it starts and another when it ends, each with the MiB that its holder has locked in the folder LOCKS at that
moment. The holder is the command itself or, in a job, its runner. "-" as LOCKS means that the command has no
claim.

    NUMBER start HOLDER GPUS HELD TIME      12 start 4711 0,2 0:6144,2:6144 1234.567890
    NUMBER end   CODE   GPUS HELD TIME
"""

from __future__ import annotations

import os
import sys
import time

# An isolated interpreter does not have the checkout on its path.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.stress.held_locks import held_mib


def _holder(folder: str, total_mib: int) -> int:
    """Returns the pid of this process or of its nearest ancestor with locks in the folder; 0 if none."""
    pid = os.getpid()
    while pid > 1 and not held_mib(pid, folder, total_mib):
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid if pid > 1 else 0


def main(
    trace: str, number: str, seconds: str, code: str, used: str, total: str, sim: str, locks: str
) -> int:
    """Uses the memory for this time; returns the exit code."""
    gpus = os.environ["CUDA_VISIBLE_DEVICES"]
    holder = 0 if locks == "-" else _holder(locks, int(total))

    def write(what: str, value: str) -> None:
        held = held_mib(holder, locks, int(total)) if holder else {}
        shown = ",".join(f"{name.removeprefix('SIM-')}:{held[name]}" for name in sorted(held)) or "-"
        # The time of a start is taken after the claim, and the time of an end before its release.
        line = f"{number} {what} {value} {gpus} {shown} {time.monotonic():.6f}\n"
        fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, line.encode())
        os.close(fd)

    write("start", str(holder))
    if int(used):
        from gpu_scheduler.system import simulated_usage

        with simulated_usage.locked(sim):
            simulated_usage.write_usage(sim, {int(gpu): int(used) for gpu in gpus.split(",")}, 10)
    time.sleep(float(seconds))
    write("end", code)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
