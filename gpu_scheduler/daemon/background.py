"""Runs the scheduler in the background (`start --daemon`), in a session of its own.

The scheduler prints to the caller's terminal until it is ready, so that startup errors appear there. The
caller waits until then. If the scheduler ends before it is ready, the caller exits with the same exit code.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon.log_setup import open_main_log
from gpu_scheduler.daemon.start_checks import claim_folder_of
from gpu_scheduler.errors import UsageError
from gpu_scheduler.runner.folder import close_inherited
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.gpu_claims import own_locks

log = logging.getLogger(__name__)

#: Called when the scheduler is ready: its options have been checked, and `stop` works.
ReadyCallback = Callable[[], None]


def check(options: StartOptions) -> None:
    """Raises UsageError if this process claims GPUs, because its claims would not reach the background."""
    folder = claim_folder_of(options, DataDir.of(options.state_file, options.data_dir))
    if own_locks(folder.path):
        raise UsageError(
            "--daemon: `run` executed this command, and its claims on GPUs would end when the scheduler goes"
            " into the background; use `run -- ... start` without --daemon"
        )


def run(
    serve: Callable[[ReadyCallback], int],
    on_ready: Callable[[int], None],
    main_log: Path,
    *,
    trust: bool = False,
) -> int:
    """Forks the scheduler process. Returns once in the caller and once in the scheduler.

    In the caller, returns 0 after the scheduler is ready and `on_ready` has been called with its pid. If the
    scheduler ends before that, returns its exit code. In the scheduler, returns its exit code when it ends.

    serve: runs the scheduler until it is asked to end, and calls its argument when the scheduler is ready.
    main_log: receives internal errors after that. trust: use main_log regardless of its owner and mode.
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
    # The new session has no terminal, so that the caller's terminal may close and Ctrl-C does not reach us.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    # The caller may have open locks, or pipes whose readers wait for EOF.
    close_inherited((0, 1, 2, ready_fd, null))
    ready = False

    def up() -> None:
        nonlocal ready
        ready = True
        # From now on, print nothing. Everything is also written to the main log or to the job logs.
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
    """Opens the main log and returns its descriptor, so that the interpreter can write errors to it."""
    try:
        return open_main_log(main_log, trust=trust)
    except OSError:
        return fallback
