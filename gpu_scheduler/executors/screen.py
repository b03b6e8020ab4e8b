"""Starts runners inside GNU Screen sessions. Screen only displays the jobs; no decision depends on it."""

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
_OWN_FOLDER = "set SCREENDIR to a folder that you own, with mode 700"
#: Longest path of a Unix socket minus "/", a pid of 7 digits, "." and a session name of 40 bytes.
_LONGEST_SOCKET_FOLDER = 107 - 49
#: Replaces the user's .screenrc, which could keep ended windows, log, or open more windows.
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
    """An executor that starts each runner in a detached Screen session.

    interpreter: the path of a Python; start: the script that makes it a runner.
    """

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = Children()

    def launch(self, folder: Path) -> None:
        """Starts a runner in the session that the folder's spec names. Raises LaunchError.

        Passes the token through Screen's settings. In the environment of the SCREEN process, a sweep would
        find it and end the session together with its output.
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
        """Collects the `screen` commands that started sessions; the SCREEN processes are not our children."""
        self._children.reap()

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    return bare_environment(base) | {"TERM": "screen", "SYSSCREENRC": os.devnull}


def screen_problem() -> str | None:
    """Returns why Screen sessions cannot be created, with the remedy; None if they can.

    Runs `screen -ls` for at most 5 s.
    """
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
        return f"GNU Screen does not respond ({error}): repair it, or start without --screen"
    answer = listed.stdout.decode("utf-8", "replace").strip()
    folder = parse(answer).folder
    if folder is None:
        output = answer.splitlines()[-1] if answer else f"exit code {listed.returncode}"
        return f"GNU Screen cannot use its socket folder: {output}\n{_OWN_FOLDER}"
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return (
            f"GNU Screen's socket folder {folder} has a path longer than {_LONGEST_SOCKET_FOLDER} bytes, "
            f"so sessions would not start\n{_OWN_FOLDER} and a shorter path"
        )
    return None
