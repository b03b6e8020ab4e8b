"""Determines on which GPUs this process or one of its ancestors holds a claim.

`run` holds the claim in the process that executes the command, so a scheduler or another `run` that it starts
either is that process or descends from it. Such a program uses these GPUs without a claim of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_scheduler.claims.gpu_claims import inherited_descriptors
from gpu_scheduler.runner.record_lock import Lock
from gpu_scheduler.system.procfs import Proc

#: The beginning of a line in /proc/PID/fdinfo/FD that shows a lock which the process holds through FD.
_LOCK_LINE = b"lock:"


def own_claims(folder: Path, locks: Mapping[str, Collection[Lock]]) -> set[str]:
    """Returns the GPUs, by UUID, on which this process or an ancestor holds a claim.

    folder: the folder of the lock files; locks: the locks of other processes on GPUs that have any. Call this
    function before the process claims GPUs itself.
    """
    ancestors = ancestor_pids() if any(locks.values()) else frozenset()
    inherited = {name for name, fd in inherited_descriptors(str(folder)).items() if _holds_lock(fd)}
    return inherited | {uuid for uuid, held in locks.items() if any(lock.pid in ancestors for lock in held)}


def ancestor_pids(pid: int | None = None) -> frozenset[int]:
    """Returns the pids of the processes from which a process descends, and its own pid.

    pid: the process; None for this process.
    """
    proc = Proc()
    own = proc.own_process if pid is None else proc.process(pid)
    return frozenset() if own is None else frozenset(one.pid for one in proc.ancestry(own))


def _holds_lock(fd: int) -> bool:
    """Returns whether this process holds a lock through this descriptor."""
    # F_GETLK shows only the locks of other processes.
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        return any(line.startswith(_LOCK_LINE) for line in file)
