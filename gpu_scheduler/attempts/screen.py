"""Starts runners inside GNU Screen sessions.

Screen only displays the jobs. No scheduling decision depends on it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from gpu_scheduler.attempts.executor import AttemptRef, LaunchError
from gpu_scheduler.attempts.folder import write_file
from gpu_scheduler.attempts.local import LocalExecutor, minimal_environment
from gpu_scheduler.core.command.build import parse_session_list
from gpu_scheduler.runner.folder import TOKEN, read_spec
from gpu_scheduler.system.run_program import run_program

INSTALL_REMEDY = "install it (sudo apt-get install screen), or start without --screen"
_SCREENDIR_REMEDY = "set SCREENDIR to a folder that you own, with mode 700"
#: Maximum length of a Unix socket's path, minus "/", a pid of 7 digits, "." and a session name of 40 bytes.
_MAX_SOCKET_FOLDER_BYTES = 107 - 49
#: Screen's settings. They replace the user's .screenrc, which could keep ended windows, write logs or open
#: more windows.
_SCREENRC = """\
startup_message off
defflow off
defnonblock on
defscrollback 10000
defutf8 on
zombie off
setenv {token_name} {token}
"""


class ScreenExecutor(LocalExecutor):
    """An executor that starts each runner in a detached Screen session.

    The executor's child processes are the `screen` commands that start sessions, not the SCREEN processes.
    """

    name = "screen"
    has_terminal = True

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner in a session with the name that the attempt's spec gives. Raises LaunchError.

        Passes the token through Screen's settings. If it were in the environment of the SCREEN process, a
        sweep would find it there and end the session, and its output would disappear.
        """
        try:
            folder = attempt.folder
            spec = read_spec(folder)
            screenrc = _SCREENRC.format(token_name=TOKEN, token=spec["token"])
            write_file(folder, "screenrc", screenrc.encode("ascii"))
            screen = shutil.which("screen")
            if screen is None:
                raise LaunchError(f"GNU Screen is not installed: {INSTALL_REMEDY}")
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


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    return minimal_environment(base) | {"TERM": "screen", "SYSSCREENRC": os.devnull}


def screen_problem() -> str | None:
    """Returns why Screen sessions cannot be created, and the remedy; None if they can be created.

    Runs `screen -ls` for at most 5 s.
    """
    program = shutil.which("screen")
    if program is None:
        return f"GNU Screen is not installed: {INSTALL_REMEDY}"
    listed = run_program([program, "-ls"], _environment(os.environ))
    if listed.problem:
        return f"GNU Screen does not respond ({listed.problem}): repair it, or start without --screen"
    answer = listed.output.strip()
    folder = parse_session_list(answer).folder
    if folder is None:
        output = answer.splitlines()[-1] if answer else f"exit code {listed.exit_code}"
        return f"GNU Screen cannot use its socket folder: {output}\n{_SCREENDIR_REMEDY}"
    if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER_BYTES:
        return (
            f"GNU Screen's socket folder {folder} has a path longer than {_MAX_SOCKET_FOLDER_BYTES} bytes, "
            f"so sessions would not start\n{_SCREENDIR_REMEDY} and a shorter path"
        )
    return None
