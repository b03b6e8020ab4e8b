"""Reads the file in which the command of an attempt records itself.

The runner writes the first line; the others are /proc/PID/stat and /proc/PID/autogroup. The entry is valid
for the boot in which it was written and, in a container, until the container is restarted.
"""

from __future__ import annotations

import os

from .folder import COMMAND_FILE, COMMAND_SIZE, SHORTAGE, boot_id, init_ticks
from .membership import RecordedCommand


def read_recorded_command(folder: int, token: str) -> RecordedCommand | None:
    """Returns the recorded command of an attempt; None if there is none of this boot.

    Raises OSError when open files or memory are short.
    """
    try:
        fd = os.open(COMMAND_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            text = os.read(fd, COMMAND_SIZE).decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    identity, stat, *rest = [*text.split("\n"), ""]
    if identity.split() != [token, boot_id(), init_ticks()] or not rest[:-1]:
        return None
    # The name in /proc/PID/stat may hold anything.
    pid, ticks = stat.partition(" ")[0], [*stat.rpartition(")")[2].split(), *[""] * 20][19]
    if not (pid.isdecimal() and ticks.isdecimal()):
        return None
    autogroup = rest[0].split()[:1] if rest[1:-1] else []
    return RecordedCommand(int(pid), int(ticks), autogroup[0] if autogroup else None)
