"""Reads from the kernel which GPU memory a process has locked. Opens no lock file, and imports little."""

from __future__ import annotations

import os


def held_mib(pid: int, folder: str, total_mib: int) -> dict[str, int]:
    """Returns the MiB that a process has locked, by the name of the lock file in `folder`.

    Only the first `total_mib` bytes stand for memory: a job for which none is left locks one beyond them, and
    has 0 MiB. Returns an empty dict for a process without locks, or one that has ended.
    """
    held: dict[str, int] = {}
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return held
    for fd in descriptors:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
            if os.path.dirname(path) == folder:
                with open(f"/proc/{pid}/fdinfo/{fd}") as file:
                    locks = [_length(line, total_mib) for line in file if line.startswith("lock:")]
                if locks:
                    held[os.path.basename(path)] = sum(locks)
        except (FileNotFoundError, ProcessLookupError):
            pass  # the descriptor was closed, or the process ended
    return held


def _length(line: str, total_mib: int) -> int:
    """Returns the MiB of a lock: "lock: 1: POSIX ADVISORY WRITE 4711 fe:00:1449986 0 EOF"."""
    first, last = line.split()[-2:]
    end = total_mib if last == "EOF" else min(int(last) + 1, total_mib)
    return max(0, end - int(first))


def has_locks(pid: int) -> bool:
    """Returns whether the kernel lists a record lock of this process, which may have ended."""
    with open("/proc/locks") as file:
        return any(words[1] == "POSIX" and words[-4] == str(pid) for words in map(str.split, file))
