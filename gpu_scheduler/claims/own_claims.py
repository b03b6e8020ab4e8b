"""Determines on which GPUs this process or one of its ancestors holds a claim.

`run` holds the claim in the process that executes the command, so a scheduler or another `run` that it starts
either is that process or descends from it. If the claim covers the whole GPU, such a program uses the GPU
without a claim of its own. A claim on a part of the memory belongs to the command alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gpu_scheduler.claims.gpu_claims import inherited_descriptors, is_runner
from gpu_scheduler.runner.record_lock import Lock
from gpu_scheduler.system.procfs import Proc

#: The beginning of a line in /proc/PID/fdinfo/FD that shows a lock which the process holds through FD.
_LOCK_LINE = "lock:"


def own_claims(locks: Mapping[str, Collection[Lock]]) -> set[str]:
    """Returns the GPUs, by UUID, of which this process or an ancestor claims the whole.

    locks: the locks on GPUs that have any, with those of this process. Call this function before the process
    claims GPUs itself.
    """
    ancestors = ancestor_pids() if any(locks.values()) else frozenset()
    return {uuid for uuid, held in locks.items() if any(is_whole_claim_of(ancestors, lock) for lock in held)}


def is_whole_claim_of(pids: Collection[int], lock: Lock) -> bool:
    """Returns whether one of these processes holds the lock, and the lock covers the whole GPU."""
    return lock.pid in pids and lock.start == 0 and lock.end is None


def own_locks(folder: Path) -> dict[str, tuple[Lock, ...]]:
    """Returns the locks that this process inherited from the program that executed it, by UUID.

    folder: the folder of the lock files. The kernel shows the locks in a file only to other processes.
    """
    found = {uuid: tuple(_locks_through(fd)) for uuid, fd in inherited_descriptors(str(folder)).items()}
    return {uuid: locks for uuid, locks in found.items() if locks}


def _locks_through(fd: int) -> Iterator[Lock]:
    """Yields the record locks that this process holds through a descriptor."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            # The line is, for example, "lock: 1: POSIX ADVISORY WRITE 4711 08:01:262 0 99", or "0 EOF".
            words = line.split()
            if words[0] == _LOCK_LINE and words[2] == "POSIX":
                yield Lock(int(words[-2]), None if words[-1] == "EOF" else int(words[-1]) + 1, os.getpid())


def is_below_runner() -> bool:
    """Returns whether this process descends from the runner of a job."""
    proc = Proc()
    return any(is_runner(proc.command_line(pid)) for pid in ancestor_pids())


def ancestor_pids(pid: int | None = None) -> frozenset[int]:
    """Returns the pids of the processes from which a process descends, and its own pid.

    pid: the process; None for this process.
    """
    proc = Proc()
    own = proc.own_process if pid is None else proc.process(pid)
    return frozenset() if own is None else frozenset(one.pid for one in proc.ancestry(own))
