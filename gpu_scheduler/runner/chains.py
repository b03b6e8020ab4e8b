"""Signals to processes each of which forks the next and ends at once, so that no scan of /proc meets one.

They are met among the youngest pids, or signalled by their process group: the kernel lets no member fork away
from that.
"""

from __future__ import annotations

import os

from .tree import autogroup, environment, fields_of, has_ended, newest_first, token_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .membership import Command

#: How often the youngest processes are looked at for a member of a group.
_HUNTS = 200


def has_group(command: Command) -> bool:
    """Whether a process, ended or not, is in the process group that the command leads or led."""
    fields = fields_of(command.pid)
    if fields is not None and int(fields[19]) != command.ticks:
        return False
    try:
        os.killpg(command.pid, 0)
    except OSError:
        return False
    return True


def send_group(command: Command, token: str, signal: int) -> bool:
    """Signal the process group of a command that may have ended, for members that fork and end too quickly
    to be signalled one by one. False: no member was met, the number is another group's now, or a member
    carries the token of another attempt."""
    if os.getpgid(0) == command.pid or not has_group(command):
        return False
    if any(
        token_in(environment(pid)) not in (b"", token.encode("ascii"))
        for pid in newest_first()
        if _is_in_group(pid, command)
    ):
        return False
    for _ in range(_HUNTS):
        for pid in _youngest():
            if _is_in_group(pid, command) and autogroup(pid) == command.autogroup:
                try:
                    os.killpg(command.pid, signal)
                except OSError:
                    return False
                return True
    return False


def send_children(signal: int) -> int | None:
    """Signal children of this process that live for less than a scan takes. The last one that was seen.

    The number of a child is its own until this process collects it.
    """
    me = os.getpid()
    seen = None
    for pid in (*_youngest(), *newest_first()):
        fields = fields_of(pid)
        if fields is not None and int(fields[1]) == me and not has_ended(fields):
            seen = pid
            os.kill(pid, signal)
    return seen


def _is_in_group(pid: int, command: Command) -> bool:
    try:
        return os.getsid(pid) == os.getpgid(pid) == command.pid
    except OSError:
        return False


def _youngest() -> Iterator[int]:
    """The pids that were given away last, whatever has become of them."""
    fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    try:
        last = int(os.read(fd, 256).split()[-1])
    finally:
        os.close(fd)
    return (pid for pid in range(last, last - 4, -1) if pid > 1)
