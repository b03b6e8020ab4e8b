"""Runs the scheduler in the background (`start --daemon`), in a session of its own.

Until it is up it keeps the caller's terminal, so that startup errors are printed there. The caller waits, and
exits with the scheduler's exit code if it does not come up.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.reporting.main_log import open_main_log
from gpu_scheduler.runner.folder import close_inherited

log = logging.getLogger(__name__)

#: Called once the scheduler is up: its options are checked, and `stop` works.
ReadyCallback = Callable[[], None]


def run(
    serve: Callable[[ReadyCallback], int],
    on_ready: Callable[[int], None],
    main_log: Path,
    *,
    trust: bool = False,
) -> int:
    """Forks the scheduler; returns in both processes.

    In the caller: 0 once the scheduler is up and `on_ready` was called with its pid, otherwise the
    scheduler's exit code. In the scheduler: its exit code, at its end.

    serve: schedules until asked to end, and calls its argument once it is up; main_log: gets internal errors
    from then on; trust: accept it regardless of its owner and mode.
    """
    ready, ready_out = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(ready_out)
        return _wait(pid, ready, on_ready)
    os.close(ready)
    return _schedule(serve, ready_out, main_log, trust=trust)


def _wait(pid: int, ready_fd: int, on_ready: Callable[[int], None]) -> int:
    try:
        up = os.read(ready_fd, 1)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(ready_fd)
    if up:
        on_ready(pid)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _schedule(serve: Callable[[ReadyCallback], int], ready_fd: int, main_log: Path, *, trust: bool) -> int:
    # A session without a terminal: the caller's terminal may close, and no key press reaches the scheduler.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    # Such as a lock, or a pipe whose reader waits for EOF.
    close_inherited((0, 1, 2, ready_fd, null))
    ready = False

    def up() -> None:
        nonlocal ready
        ready = True
        # Everything printed is also in the main log or in the job logs.
        os.dup2(null, 1)
        os.dup2(_open_log(main_log, null, trust=trust), 2)
        try:
            os.write(ready_fd, b"\n")
        except BrokenPipeError:
            pass  # the caller has ended
        os.close(ready_fd)

    try:
        return serve(up)
    except Exception:
        if ready:
            log.critical("the scheduler ends because of an internal error", exc_info=True)
        raise


def _open_log(main_log: Path, fallback: int, *, trust: bool) -> int:
    """Opens the main log, for errors that the interpreter itself writes to stderr. Returns its descriptor."""
    try:
        return open_main_log(main_log, trust=trust)
    except OSError:
        return fallback
