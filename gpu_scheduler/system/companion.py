"""Helps a process that runs beside a scheduler: it ends with the scheduler, and each queue has only one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.folder import close_inherited
from gpu_scheduler.runner.locks import conflicting_lock, try_lock
from gpu_scheduler.system.deadline import start_thread


def begin(until_eof: int | None, hanging_s: float) -> None:
    """Prepares a process that SIGTERM and SIGINT end at once, with SystemExit(0).

    until_eof: the descriptor of a file at whose end it ends too; by force if it hangs for
    `hanging_s` seconds.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    os.umask(0o077)
    # With an open lock file of a GPU, this process would claim the GPU.
    close_inherited((0, 1, 2) if until_eof is None else (0, 1, 2, until_eof))
    if until_eof is not None:
        start_thread(lambda: end_at_eof(until_eof, hanging_s))


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
