"""The Screen sessions of attempts, as their claims name them: where the socket of one is, and whether
somebody looks into it. Nothing about a job is decided from them."""

from __future__ import annotations

import os
import shutil

from gpu_scheduler.asking import ask
from gpu_scheduler.core.sessionlist import SessionList, parse


def socket_folder(session: str) -> str | None:
    """The SCREENDIR in which the session was made, None = it had none; ours, where that cannot be read."""
    try:
        with open(f"/proc/{_pid(session)}/environ", "rb") as file:
            content = file.read()
    except OSError:
        return os.environ.get("SCREENDIR") or None
    for item in content.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name == b"SCREENDIR":
            return os.fsdecode(value) or None
    return None


def environment(folder: str | None) -> dict[str, str]:
    """Ours, in which Screen finds the sockets in that folder."""
    rest = {name: value for name, value in os.environ.items() if name != "SCREENDIR"}
    return rest if folder is None else {**rest, "SCREENDIR": folder}


def listed(folder: str | None) -> SessionList | str:
    """What Screen lists of that folder, or why it lists nothing, in words."""
    program = shutil.which("screen")
    if program is None:
        return "GNU Screen is not installed; install it (sudo apt-get install screen)"
    said = ask([program, "-ls"], environment(folder))
    # Its exit code tells nothing: 1 with sessions in some versions, 0 without any in others.
    return parse(said.text) if said.code is not None else said.problem


def _pid(session: str) -> str:
    return session.partition(".")[0]
