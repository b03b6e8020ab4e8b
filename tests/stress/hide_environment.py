"""A job's process that overwrites its own environment, as programs that set their title do.

Usage: python hide_environment.py TRACE N SECONDS CODE LOCK. In all other respects it behaves like `hidden.sh`
in hidden_processes.py.
"""

import ctypes
import fcntl
import os
import sys
import time


def main() -> int:
    """Hides the environment, writes the start into the trace, sleeps, and writes the end."""
    trace, number, seconds, code, lock = sys.argv[1:]
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    with open(trace, "a", buffering=1) as out:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            out.write(f"{number} beside {os.getpid()}\n")
        out.write(f"{number} start {os.getpid()}\n")
        time.sleep(float(seconds))
        out.write(f"{number} end {code}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
