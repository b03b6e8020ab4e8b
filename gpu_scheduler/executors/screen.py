"""Runners inside GNU Screen sessions. Screen is a window to look through: nothing is decided from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_scheduler.core.sessionlist import parse
from gpu_scheduler.executors import LaunchError
from gpu_scheduler.executors.spawn import Children, bare_environment
from gpu_scheduler.runner.folder import START, TOKEN, spec_of
from gpu_scheduler.runner.prepare import replace

INSTALL = "install it (sudo apt-get install screen), or start without --screen"
_OWN_FOLDER = "set SCREENDIR to a folder of yours with mode 700"
#: Longest address of a Unix socket, less "/", a pid of 7 digits, "." and a session name of 40.
_LONGEST_SOCKET_FOLDER = 107 - 49
#: The user's own .screenrc could keep windows after their end, log, or open more of them.
_SCREENRC = """\
startup_message off
defflow off
defnonblock on
defscrollback 10000
defutf8 on
zombie off
setenv {token_name} {token}
"""


class ScreenExecutor:
    """interpreter: a real Python, not looked up on PATH; start: the file that makes it a runner."""

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = Children()

    def launch(self, folder: Path) -> None:
        """Start a runner in a session named by the folder's spec. Raises LaunchError.

        The token goes through Screen's own settings: in the environment of SCREEN a sweep would find it, and
        end the session with what is shown in it.
        """
        try:
            spec = spec_of(folder)
            screenrc = _SCREENRC.format(token_name=TOKEN, token=spec["token"])
            replace(folder, "screenrc", screenrc.encode("ascii"))
            screen = shutil.which("screen")
            if screen is None:
                raise LaunchError(f"GNU Screen is not installed: {INSTALL}")
            argv = (
                screen,
                "-c",
                str(folder / "screenrc"),
                "-dmS",
                spec["session"],
                *self._command,
                str(folder),
            )
            self._children.start(argv, _environment(os.environ))
        except OSError as error:
            raise LaunchError(f"Screen cannot be started: {error}") from error

    def reap(self) -> None:
        """Collect the starters of sessions; SCREEN itself is nobody's child."""
        self._children.reap()

    def close(self) -> None:
        """It holds nothing."""


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    return bare_environment(base) | {"TERM": "screen", "SYSSCREENRC": os.devnull}


def screen_problem() -> str | None:
    """Why sessions cannot be made here, and the remedy; None if they can. Runs `screen -ls`, at most 5 s."""
    program = shutil.which("screen")
    if program is None:
        return f"GNU Screen is not installed: {INSTALL}"
    try:
        listed = subprocess.run(
            [program, "-ls"],
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"GNU Screen does not answer ({error}): repair it, or start without --screen"
    answer = listed.stdout.decode("utf-8", "replace").strip()
    folder = parse(answer).folder
    if folder is None:
        said = answer.splitlines()[-1] if answer else f"exit code {listed.returncode}"
        return f"GNU Screen cannot use its socket folder: {said}\n{_OWN_FOLDER}"
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return (
            f"GNU Screen's socket folder {folder} has a name longer than {_LONGEST_SOCKET_FOLDER} bytes, "
            f"so sessions would not start\n{_OWN_FOLDER}, with a shorter name"
        )
    return None
