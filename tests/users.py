"""Processes of other users, for tests that run as root."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - see below
import os
import pwd  # noqa: F401 - see below
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import pytest

# The interpreter may be in a private folder of root. A process of another user can then import nothing, so
# these modules, which the package imports only when it needs them, are imported here.
import gpu_scheduler.system.procfs  # noqa: F401

T = TypeVar("T")


class User:
    """A process of the user with this uid, which calls functions of the test. It keeps their locks."""

    def __init__(self, uid: int, umask: int = 0o022) -> None:
        self.uid = uid
        self._requests, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._requests.close()
            if uid != os.geteuid():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.umask(umask)
            theirs.send(None)
            _answer(theirs)
        theirs.close()
        self._requests.recv()  # it runs as its user from now on

    def ask(self, function: Callable[..., Any], *arguments: object) -> None:
        """Makes the process call a function. `answer` returns the result."""
        self._requests.send((function, arguments))

    def answer(self) -> Any:
        """Waits for the result of the function. Fails if the function raised an exception."""
        assert self._requests.poll(60), "no answer within 60 s"
        result, error = self._requests.recv()
        assert error is None, error
        return result

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Makes the process call a function and returns the result."""
        self.ask(function, *arguments)
        result: T = self.answer()
        return result

    def kill(self) -> None:
        """Kills the process and waits until it is gone."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _answer(requests: Any) -> None:
    """Calls functions until the test ends. Never returns."""
    try:
        while True:
            function, arguments = requests.recv()
            result, error = None, None
            try:
                result = function(*arguments)
            except Exception:  # noqa: BLE001 - the test fails with it
                error = traceback.format_exc()
            requests.send((result, error))
    finally:
        os._exit(0)


def run_as(uid: int) -> list[str]:
    """Returns the beginning of a command line that runs the rest, a Python program, as this user.

    If the interpreter is in a private folder of root, the program can read all files, as root can. Skips the
    test unless setpriv is installed.
    """
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    folders = [*Path(os.path.realpath(sys.executable)).parents, *Path(__file__).resolve().parents]
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
    reads = [] if is_open else ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *reads]
