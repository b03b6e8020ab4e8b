"""Runs a command on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Terminal:
    """A command that runs on a pseudo-terminal. with_stderr: whether its messages appear there, too."""

    def __init__(
        self,
        *words: str,
        size: tuple[int, int] = (24, 80),
        in_background: bool = False,
        with_stderr: bool = False,
        **env: str,
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self._theirs)
        command = [sys.executable, "-m", "gpu_scheduler", *words]
        if in_background:
            command = ["bash", "--norc", "-c", 'set -m; "$@" & wait', "bash", *command]
        plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            command, env={**plain, "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
            stdin=self._theirs, stdout=self._theirs, stderr=self._theirs if with_stderr else None,
            start_new_session=True, preexec_fn=self._control,
        )  # fmt: skip
        self._said = b""

    def _control(self) -> None:
        """Makes the pseudo-terminal the controlling terminal, so that Ctrl-C ends the command."""
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> str:
        """Returns all output so far."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._said += os.read(self._ours, 65536)
            except OSError:
                break
        return self._said.decode()

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def until(self, text: str, since: int = 0) -> str:
        """Waits until `text` appears in the output after the first `since` characters.

        Returns that part of the output.
        """
        wait_for(lambda: text in self.read()[since:], f"{text!r}")
        return self.read()[since:]

    def end(self) -> tuple[int, str]:
        """Waits for the end of the command. Returns its exit code and complete output."""

        def is_over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_for(is_over, "the end of the command")
        said = self.read()
        self.after = termios.tcgetattr(self._theirs)
        return self.process.returncode, said.replace("\r", "")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)
