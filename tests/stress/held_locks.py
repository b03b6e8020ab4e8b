"""Reads from the kernel which GPU memory a process has locked. Opens no lock file, and imports little."""

from __future__ import annotations

import os


def held_mib(pid: int, folder: str, total_mib: int) -> dict[str, int]:
    """Returns the MiB that a process has locked, by the name of the lock file in `folder`.

    A lock to infinity counts up to `total_mib`. Returns an empty dict for a process that has ended.
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
                    mib = sum(_length(line, total_mib) for line in file if line.startswith("lock:"))
                held[os.path.basename(path)] = mib
        except (FileNotFoundError, ProcessLookupError):
            pass  # the descriptor was closed, or the process ended
    return {name: mib for name, mib in held.items() if mib}


def _length(line: str, total_mib: int) -> int:
    """Returns the length of a lock: "lock: 1: POSIX ADVISORY WRITE 4711 fe:00:1449986 0 EOF"."""
    first, last = line.split()[-2:]
    return (total_mib if last == "EOF" else int(last) + 1) - int(first)


def has_locks(pid: int) -> bool:
    """Returns whether the kernel lists a record lock of this process, which may have ended."""
    with open("/proc/locks") as file:
        return any(words[1] == "POSIX" and words[-4] == str(pid) for words in map(str.split, file))
