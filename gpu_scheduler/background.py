"""`start --daemon`: the scheduler goes on in a session of its own once it is up.

Until then it keeps the caller's terminal, so that whatever keeps it from starting is told there; the caller
waits, and ends with the scheduler's own exit code if it does not come up.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.mainlog import opened

log = logging.getLogger(__name__)

#: Told when the scheduler is up; what it was given has been checked, and `stop` reaches it.
Up = Callable[[], None]


def run(
    serve: Callable[[Up], int], is_up: Callable[[int], None], main_log: Path, *, trust: bool = False
) -> int:
    """In the caller: 0 once the scheduler is up and `is_up` was given its pid; else the exit code with which
    it ended. In the scheduler: the exit code, at its end.

    serve: schedules until asked to end, and calls what it is given once it is up; main_log: where a fault
    that ends it is told from then on; trust: whoever owns that or may write it.
    """
    ready, told = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(told)
        return _wait(pid, ready, is_up)
    os.close(ready)
    return _schedule(serve, told, main_log, trust=trust)


def _wait(pid: int, ready: int, is_up: Callable[[int], None]) -> int:
    try:
        up = os.read(ready, 1)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(ready)
    if up:
        is_up(pid)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _schedule(serve: Callable[[Up], int], told: int, main_log: Path, *, trust: bool) -> int:
    # A session without a terminal: the one that it was started from may close, and no key reaches it.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    _close_others((0, 1, 2, told, null))
    ready = False

    def up() -> None:
        nonlocal ready
        ready = True
        # What is printed stands in the main log or in the logs of jobs as well.
        os.dup2(null, 1)
        os.dup2(_appended(main_log, null, trust=trust), 2)
        try:
            os.write(told, b"\n")
        except BrokenPipeError:
            pass  # the caller was ended meanwhile
        os.close(told)

    try:
        return serve(up)
    except Exception:
        if ready:
            log.critical("the scheduler ends by a fault of its own", exc_info=True)
        raise


def _appended(main_log: Path, otherwise: int, *, trust: bool) -> int:
    """The main log, for what is written past it by the interpreter itself."""
    try:
        return opened(main_log, trust=trust)
    except OSError:
        return otherwise


def _close_others(kept: tuple[int, ...]) -> None:
    """Let go of what the caller had open: a lock, a pipe whose reader waits for its end."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own
