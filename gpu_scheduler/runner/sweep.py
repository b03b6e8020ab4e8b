"""Processes of attempts whose runner is gone, found and ended.

One scan of /proc serves any number of attempts. The caller decides when to look again; `sweep` is for one
that may wait.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_scheduler.runner import chains, tree
from gpu_scheduler.runner.folder import SHORTAGE, open_folder
from gpu_scheduler.runner.membership import Command
from gpu_scheduler.runner.recorded import command_of

_LOOK_AGAIN_S = 0.05
#: An empty scan that has missed a process is repeated so often: a chain of processes each of which forks and
#: ends would be missed for ever, other programs fork now and then.
_SCANS = 10


def recorded_command(folder: Path, token: str) -> Command | None:
    """The command of an attempt, as it recorded itself; None if it did not, or in another boot.

    Raises OSError for want of open files or memory.
    """
    try:
        fd = open_folder(os.fspath(folder))
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    try:
        return command_of(fd, token)
    finally:
        os.close(fd)


def processes_of(attempts: Mapping[str, Path], sure: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """The pids of the living processes of each attempt (token -> folder); one without any is left out.

    sure: attempts that had nobody to look after their processes: that they have none is not believed before
    a scan has missed no process, within reason.
    """
    commands = {token: recorded_command(folder, token) for token, folder in attempts.items()}
    return {token: tuple(sorted(found)) for token, found in _scan(commands, sure).items()}


def _scan(commands: Mapping[str, Command | None], sure: Collection[str]) -> dict[str, dict[int, int]]:
    for _ in range(_SCANS):
        scan = tree.scan(commands)
        unsure = [token for token in sure if token not in scan.found] if scan.missed else []
        if not unsure:
            break
    for token in unsure:
        command = commands[token]
        if command is not None and chains.has_group(command):
            scan.found[token] = {command.pid: 0}  # none of them lives long enough to be named
    return scan.found


def sweep_once(folder: Path, token: str, sig: int) -> tuple[int, ...]:
    """Signal every process of the attempt, once. The pids that were found; empty = nothing is left.

    Never waits: call it again until it finds nothing. Kill a live runner first, this would reach it too.
    """
    command = recorded_command(folder, token)
    found = _scan({token: command}, (token,)).get(token, {})
    if command is not None and sig and 0 in found.values():
        chains.send_group(command, token, sig)
    for pid, ticks in found.items():
        tree.send(pid, ticks, sig)
        if sig == signal.SIGTERM:
            tree.send(pid, ticks, signal.SIGCONT)
    return tuple(sorted(found))


def sweep(folder: Path, token: str, term_s: float = 2.0, deadline_s: float = 10.0) -> tuple[int, ...]:
    """SIGTERM, after `term_s` s SIGKILL, until a scan finds nothing or `deadline_s` is over. Survivors."""
    start = time.monotonic()
    found = sweep_once(folder, token, signal.SIGTERM)
    while found and (passed := time.monotonic() - start) < deadline_s:
        time.sleep(_LOOK_AGAIN_S)
        # Signal 0 only looks: a handler that saves its work shall run once.
        found = sweep_once(folder, token, signal.SIGKILL if passed >= term_s else 0)
    return found
