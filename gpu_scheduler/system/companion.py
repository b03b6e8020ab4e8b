"""Helps a process that runs beside a scheduler: it ends with the scheduler, and each queue has only one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.record_lock import conflicting_lock, try_lock


def end_at_eof(fd: int, hanging_s: float) -> None:
    """Ends this process at the end of a file, by force if it hangs for so many seconds."""
    try:
        while os.read(fd, 512):
            pass
    except OSError:
        pass  # there is no such descriptor
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(hanging_s)
    os._exit(1)


def lock_file(path: Path, problem: str) -> None:
    """Locks a file until this process ends.

    Raises SchedulerError, which begins with `problem`, if another process has locked it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if try_lock(fd):
            return
        holder = conflicting_lock(fd)
    except OSError as error:
        raise SchedulerError(f"cannot lock {path}: {error.strerror}") from None
    who = f" (pid {holder.pid})" if holder is not None else ""
    raise SchedulerError(f"{problem}{who}; end it first")
