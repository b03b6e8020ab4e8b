"""Finds the socket folder of an attempt's Screen session, and asks Screen for its sessions.

The answers are only for display and for `attach`. No decision about a job depends on them.
"""

from __future__ import annotations

import os
import shutil

from gpu_scheduler.core.command.sessions import SessionList, parse_session_list
from gpu_scheduler.system.run_program import run_program


def socket_folder(session: str) -> str | None:
    """Returns the SCREENDIR with which the session was created; None if SCREENDIR was not set.

    If the session's environment cannot be read, returns the SCREENDIR of this process.
    """
    try:
        with open(f"/proc/{_session_pid(session)}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return os.environ.get("SCREENDIR") or None
    for item in content.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name == b"SCREENDIR":
            return os.fsdecode(value) or None
    return None


def screen_environment(folder: str | None) -> dict[str, str]:
    """Returns this process's environment, changed so that Screen looks for sockets in that folder."""
    rest = {name: value for name, value in os.environ.items() if name != "SCREENDIR"}
    return rest if folder is None else {**rest, "SCREENDIR": folder}


def list_sessions(folder: str | None) -> SessionList | str:
    """Returns the sessions that Screen lists for a socket folder, or a text that says why it lists none."""
    program = shutil.which("screen")
    if program is None:
        return "GNU Screen is not installed; install it (sudo apt-get install screen)"
    result = run_program([program, "-ls"], screen_environment(folder))
    # The exit code is useless: some versions return 1 even if there are sessions, and others always return 0.
    return parse_session_list(result.output) if result.exit_code is not None else result.problem


def _session_pid(session: str) -> str:
    return session.partition(".")[0]
