"""Starts runners without a terminal. A helper process forks them, which saves about 20 ms per job.

The helper (`runner.fork_server`) has the runner's modules loaded. It is started by exec and shares only two
pipes with the scheduler. Runners are started without it, as in `local`, if the helper is not ready, does not
respond, or refuses for a reason other than a shortage. If a request is lost because the helper ends, no
runner claims the attempt, and the loop launches it again.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterable
from errno import EMFILE, ENOSYS
from pathlib import Path

from gpu_scheduler.attempts.executor import AttemptRef, LaunchError
from gpu_scheduler.attempts.local import ChildProcesses, DirectExecutor, minimal_environment
from gpu_scheduler.runner.folder import SHORTAGE, START, TOKEN, read_spec
from gpu_scheduler.runner.fork_server import FORKED, NO_TOKEN, READY, REFUSED, TITLE_BYTES

#: Seconds to wait for an answer before the helper is replaced. An answer usually takes a millisecond.
_ANSWER_S = 2.0
#: Minimum seconds between two starts of a helper.
_START_EVERY_S = 10.0
#: Number of launches to remember, in order to recognise a second launch of the same attempt.
_RECENT_LAUNCHES = 64


class ForkingExecutor(DirectExecutor):
    """An executor that starts runners through a helper process.

    interpreter: the path of a Python interpreter. start: the script that it runs to become a runner or a
    helper.
    """

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        super().__init__(interpreter, start)
        self._helper: _Helper | None = None
        self._next_start_at = 0.0
        #: Tokens of the attempts that helpers were asked to launch most recently.
        self._recent_launches = deque[str](maxlen=_RECENT_LAUNCHES)
        self._start()

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            forked = self._fork(read_spec(attempt.folder)["token"], attempt.folder)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error
        if not forked:
            super().launch(attempt)

    def close(self) -> None:
        """Ends the helper; its runners keep running."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _fork(self, token: str, folder: Path) -> bool:
        """Asks the helper to fork a runner; returns whether it did. Raises OSError on a shortage."""
        helper = self._helper
        if token in self._recent_launches and helper is not None:
            # The runner of the first launch never claimed the attempt. The helper's limits may be lower than
            # the scheduler's.
            self._replace(helper)
            return False
        if helper is None:
            self._start()
            return False
        if len(token) != len(NO_TOKEN):
            return False
        self._recent_launches.append(token)
        try:
            refused = helper.fork(token, folder) if helper.ready() else ENOSYS
        except OSError:
            # Kill a helper that has not answered, so that it cannot act on the request later.
            self._replace(helper)
            if not helper.was_ready:
                self._next_start_at = float("inf")  # forking does not work on this machine
            return False
        if refused in SHORTAGE:
            if refused == EMFILE:
                # A new helper inherits the scheduler's limit on open files, which may have been raised.
                self._replace(helper)
            raise OSError(refused, os.strerror(refused))
        return not refused

    def _replace(self, helper: _Helper) -> None:
        """Kills the helper; a later launch starts another one."""
        self._children.kill(helper.pid)
        self.close()

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._next_start_at:
            return
        self._next_start_at = now + _START_EVERY_S
        try:
            self._helper = _Helper(self._children, (*self._command, "--forks", "." * TITLE_BYTES))
        except OSError:
            pass  # launching without the helper will report the problem


class _Helper:
    """A helper process and our ends of its pipes. Raises OSError if it cannot be started or used."""

    def __init__(self, children: ChildProcesses, command: tuple[str, ...]) -> None:
        far_in, self._requests = _pipe()
        try:
            self._answers, far_out = _pipe()
        except OSError:
            _close((far_in, self._requests))
            raise
        try:
            env = minimal_environment(os.environ) | {TOKEN: NO_TOKEN}
            self.pid = children.start(command, env, (far_in, far_out))
        except OSError:
            self.close()
            raise
        finally:
            os.close(far_in)
            os.close(far_out)
        self.was_ready = False

    def ready(self) -> bool:
        """Returns whether the helper has reported that it can fork; does not block."""
        if not self.was_ready:
            self.was_ready = self._read_answer(0.0) == READY
        return self.was_ready

    def fork(self, token: str, folder: Path) -> int:
        """Asks the helper to fork a runner for this folder; returns 0, or the errno of the failure."""
        os.write(self._requests, token.encode("ascii") + os.fsencode(folder.absolute()) + b"\0")
        answer = self._read_answer(_ANSWER_S)
        if answer is None:
            raise TimeoutError
        if answer == FORKED:
            return 0
        why = self._read_answer(_ANSWER_S) if answer == REFUSED else None
        return why[0] if why else ENOSYS

    def _read_answer(self, timeout_s: float) -> bytes | None:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return None
        answer = os.read(self._answers, 1)
        if not answer:
            raise BrokenPipeError
        return answer

    def close(self) -> None:
        """Closes the pipes, which makes the helper exit."""
        os.close(self._requests)
        os.close(self._answers)


def _pipe() -> tuple[int, int]:
    """Makes a pipe whose descriptors are 3 or higher, even if 0, 1 or 2 is free."""
    ends = os.pipe()
    above: list[int] = []
    try:
        for fd in ends:
            above.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError:
        _close(above)
        raise
    finally:
        _close(ends)
    return above[0], above[1]


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
