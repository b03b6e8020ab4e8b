"""Checks the clock, and kernel limits that a large number of jobs can reach."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_scheduler.core.model.finding import Check, Finding, ok, warn

#: The number of inotify watches that a scheduler with a few hundred jobs uses.
_MIN_WATCHES = 1024
#: The number of ptys that should be free.
_MIN_FREE_PTYS = 64
#: 2024-01-01 in seconds since 1970. A clock that shows an earlier time was never set.
_EARLIEST_VALID_S = 1_704_067_200.0
#: A file's modification time may be later than the clock by at most this many seconds.
_MAX_AHEAD_S = 60.0


def inotify(limits: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Returns the finding about inotify: whether it is available, and how many watches are allowed."""
    from inotify_simple import INotify

    instances, watches = (_read_number(limits / f"max_user_{name}") for name in ("instances", "watches"))
    try:
        INotify().close()
    except OSError as error:
        message = f"no instance is available ({error.strerror}); the scheduler polls files every few seconds"
        remedy = f"sudo sysctl fs.inotify.max_user_instances={4 * (instances or 128)}"
        return warn(Check.INOTIFY, message, remedy)
    if watches is not None and watches < _MIN_WATCHES:
        message = f"limit: {watches} watches; with many jobs, the scheduler polls files every few seconds"
        return warn(Check.INOTIFY, message, "sudo sysctl fs.inotify.max_user_watches=65536")
    return ok(Check.INOTIFY, f"limits: {_or_unknown(instances)} instances, {_or_unknown(watches)} watches")


def ptys(limits: Path = Path("/proc/sys/kernel/pty")) -> Finding:
    """Returns the finding about the number of free ptys. Each job in Screen takes two."""
    most, used = _read_number(limits / "max"), _read_number(limits / "nr")
    if most is not None and used is not None and most - used < _MIN_FREE_PTYS:
        message = f"{most - used} of {most} are free; each job in Screen takes two"
        return warn(Check.PTYS, message, f"sudo sysctl kernel.pty.max={2 * most}")
    return ok(Check.PTYS, f"{_or_unknown(used)} of {_or_unknown(most)} in use")


def clock(now: float, files: Iterable[Path]) -> Finding:
    """Returns the finding about the clock. now: seconds since 1970; files: some files written before now."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < _EARLIEST_VALID_S:
        return warn(
            Check.CLOCK,
            f"{shown}: the clock was never set, so ages and times are wrong",
            "set the clock (timedatectl)",
        )
    ahead = [path for path in files if _modified_at(path) > now + _MAX_AHEAD_S]
    if ahead:
        message = f"{shown}, which is earlier than the time of the last change to {ahead[0]}"
        return warn(Check.CLOCK, message, "set the clock (timedatectl); this does not correct recorded times")
    return ok(Check.CLOCK, shown)


def _modified_at(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)
