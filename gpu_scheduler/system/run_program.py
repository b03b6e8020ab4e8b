"""Runs an external program with a timeout. Abandons a program that hangs, even if it cannot be killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

#: Default number of seconds that a program may take, and maximum number of bytes of its output.
TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 1 << 20
_POLL_INTERVAL_S = 0.05


class ProgramResult(Struct, frozen=True):
    """The result of running a program.

    exit_code: None if the program could not be started or did not end in time; `problem` then gives the
    reason. output: what the program wrote to stdout and stderr.
    """

    exit_code: int | None
    output: str
    problem: str = ""

    @property
    def succeeded(self) -> bool:
        """Returns whether the program exited with code 0."""
        return self.exit_code == 0

    def failure_reason(self) -> str:
        """Returns the reason for the failure as one line."""
        lines = self.output.strip().splitlines()
        return self.problem or (lines[-1] if lines else f"exit code {self.exit_code}")


def run_program(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> ProgramResult:
    """Runs a program without input or terminal and returns its result. Sets LC_ALL=C for English messages.

    A program that writes more than `max_output_bytes` counts as one that does not answer.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**(os.environ if env is None else env), "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return ProgramResult(None, "", f"{argv[0]} cannot be started: {error.strerror}")
    assert process.stdout is not None
    with process.stdout as pipe:
        data, ended = _read_output(process, pipe.fileno(), time.monotonic() + timeout_s, max_output_bytes)
    text = data.decode("utf-8", "replace")
    if ended:
        return ProgramResult(process.returncode, text)
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(0.5)
    return ProgramResult(None, text, f"{argv[0]} did not answer within {timeout_s:g} s")


def _read_output(
    process: subprocess.Popen[bytes], fd: int, deadline: float, max_bytes: int
) -> tuple[bytes, bool]:
    """Reads output until the process ends or time is up; returns the output and whether the process ended.

    Does not wait for the end of the output, because children of the process may keep the pipe open.
    """
    data = bytearray()
    while time.monotonic() < deadline and len(data) < max_bytes:
        ended = process.poll() is not None
        if select.select([fd], [], [], 0 if ended else _POLL_INTERVAL_S)[0]:
            chunk = os.read(fd, 1 << 16)
            data += chunk
            if chunk:
                continue
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return bytes(data), False
            return bytes(data), True
        if ended:
            return bytes(data), True
    return bytes(data), False
