"""Limits how long this process waits for files, defers its Ctrl-C, and ends it with its scheduler.

A network folder may not respond, so a caller looks at files in a thread of its own. A companion of a
scheduler, such as the web server, ends when the scheduler ends, and each queue has only one of a kind.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.runner.folder import close_inherited
from gpu_scheduler.runner.locks import conflicting_lock, try_lock

_Found = TypeVar("_Found")


def start_thread(work: Callable[[], object]) -> bool:
    """Starts a thread that does not keep the program from ending; returns False if that fails.

    threading.Thread.start would wait forever for a thread that ends, for lack of memory, before it runs.
    """
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:
        return False  # too many threads run
    return True


def within(timeout_s: float, look: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Returns what `look` returns, or `otherwise` if that takes longer. Raises the errors of `look`.

    A look that takes too long goes on in its own thread, which does not keep the program from ending.
    """
    found: list[_Found] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(look())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            errors.append(error)
        ended.set()

    if not start_thread(run):
        return otherwise
    ended.wait(timeout_s)
    if errors:
        raise errors[0]
    return found[0] if found else otherwise


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Delivers a SIGINT that arrives inside the block at its end, where it raises KeyboardInterrupt.

    The user then learns of every change that the block records.
    Only for processes with one thread, because another thread would receive the signal.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


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
    with suppress(OSError):  # there is no such descriptor
        while os.read(fd, 512):
            pass
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


#: Runs our command line from its own folder. A file in the current folder, such as a `queue.py`, then shadows
#: no module of the standard library.
_PROGRAM = (
    "import sys; root = sys.argv.pop(1); sys.path[:] = [root, *filter(None, sys.path)]; import gpu_scheduler;"
    " sys.path.remove(root); from gpu_scheduler.cli import main; sys.exit(main())"
)
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def program_words(script: str = "") -> tuple[str, ...]:
    """Returns the words that run this command line from any folder.

    script: `sys.argv[0]` to name the script of the user where there is one.
    """
    if os.path.basename(script) in ("scheduler.py", "gpu-scheduler"):
        return (sys.executable, os.path.abspath(script))
    return (sys.executable, "-c", _PROGRAM, _ROOT)
