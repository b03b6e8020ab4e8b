"""Runs the program in processes forked from a process that has already imported it.

`Process` and `run` stand in for `subprocess.Popen` and `subprocess.run` with `python -m MODULE`. A process
has its own pid, signals, folder, environment and descriptors as usual, but saves the 0.2 s of CPU time that
an interpreter needs to start. Tests of that start (imports, arguments in /proc, limits, locale) cannot use
this module.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any, TextIO

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.preload"])


@dataclass
class _Descriptor:
    """A file descriptor. Pickling it passes it to another process."""

    number: int

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, state: Any) -> None:
        self.number = state.detach()


class Process:
    """A process `python -m MODULE WORD…` in `cwd`, with empty stdin. stdout, stderr: open descriptors."""

    def __init__(
        self, module: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: int, stderr: int
    ) -> None:
        self.args = (module, *words)
        outputs = _Descriptor(stdout), _Descriptor(stderr)
        self._process = _SERVER.Process(
            target=_run_module, args=(module, list(words), str(cwd), dict(env), *outputs), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended the process; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Returns the exit code as `returncode` does."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process and returns its exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the server has collected it, and reports that a moment later
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    module: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m MODULE WORD…`. Returns when it has ended and its stdout and stderr are closed."""
    (out, out_far), (err, err_far) = os.pipe(), os.pipe()
    try:
        process = Process(module, words, cwd, env, out_far, err_far)
    finally:
        os.close(out_far)
        os.close(err_far)
    said = {out: bytearray(), err: bytearray()}
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for near in said:
            selector.register(near, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(end - time.monotonic())
            if not ready:
                process.kill()
                raise subprocess.TimeoutExpired(process.args, timeout, bytes(said[out]), bytes(said[err]))
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                said[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    code = process.wait(max(1.0, end - time.monotonic()))
    return subprocess.CompletedProcess(process.args, code, said[out].decode(), said[err].decode())


def _run_module(
    module: str, words: list[str], cwd: str, env: dict[str, str], stdout: _Descriptor, stderr: _Descriptor
) -> None:
    stdin = os.open(os.devnull, os.O_RDONLY)
    for number, standard in ((stdin, 0), (stdout.number, 1), (stderr.number, 2)):
        os.dup2(number, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = _open(0, "r"), _open(1, "w"), _open(2, "w", 1)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _open(number: int, mode: str, buffering: int = -1) -> TextIO:
    return open(number, mode, buffering, closefd=False)  # type: ignore[return-value]
