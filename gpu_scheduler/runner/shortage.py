"""Checks whether processes can be started now, by starting some that exit at once."""

from __future__ import annotations

import os

from .folder import SHORTAGE

_ENOMEM = SHORTAGE[1]
_PROGRAMS = ("/bin/true", "/usr/bin/true")


def start_error(count: int) -> int | None:
    """Tests whether `count` processes can be started; returns None if they can, otherwise the errno.

    Each process counts towards the limit until it is collected, even if it has ended. The processes are
    therefore started first and collected afterwards.
    """
    program = next((path for path in _PROGRAMS if os.path.exists(path)), None)
    if program is None:
        return None
    pids: list[int] = []
    failed: int | None = None
    try:
        for _ in range(count):
            pids.append(os.posix_spawn(program, ["true"], {}, setsigmask=()))
    except OSError as error:
        failed = error.errno if error.errno in SHORTAGE else None
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        # A process that started but could not load its program ran short of memory or open files.
        failed = failed or (_ENOMEM if status else None)
    return failed
