"""Finds and ends the processes of attempts whose runner is gone.

One scan of /proc covers any number of attempts. The caller decides when to scan again. Only `sweep`
waits for processes to end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_scheduler.runner import leftovers, process_scan
from gpu_scheduler.runner.folder import SHORTAGE, open_folder
from gpu_scheduler.runner.process_scan import RecordedCommand

_RESCAN_S = 0.05
#: Maximum number of scans if each finds nothing but may have missed a process. Scans always miss a fork
#: chain; other programs fork only occasionally, so a few scans are enough.
_MAX_SCANS = 10


def recorded_command(folder: Path, token: str) -> RecordedCommand | None:
    """Returns the recorded command of an attempt; None if none was recorded since the machine booted.

    Raises OSError for a shortage of open files or memory.
    """
    try:
        fd = open_folder(os.fspath(folder))
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None
    try:
        return process_scan.read_recorded_command(fd, token)
    finally:
        os.close(fd)


def processes_of(
    attempts: Mapping[str, Path], unsupervised: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Returns the pids of the living processes of these attempts, by token; omits attempts that have none.

    attempts: the folder of each attempt, by token. unsupervised: the tokens of attempts whose processes had
    no supervisor. If none of their processes is found, the scan is repeated until it has certainly missed
    none, up to a maximum number of scans.
    """
    commands = {token: recorded_command(folder, token) for token, folder in attempts.items()}
    return {token: tuple(sorted(found)) for token, found in _scan(commands, unsupervised).items()}


def _scan(
    commands: Mapping[str, RecordedCommand | None], unsupervised: Collection[str]
) -> dict[str, dict[int, int]]:
    for _ in range(_MAX_SCANS):
        scan = process_scan.scan(commands)
        unsure = [token for token in unsupervised if token not in scan.found] if scan.missed else []
        if not unsure:
            break
    for token in unsure:
        command = commands[token]
        if command is not None and leftovers.may_have_living_group(command):
            scan.found[token] = {command.pid: 0}  # no process lives long enough for its pid to be known
    return scan.found


def sweep_once(folder: Path, token: str, sig: int) -> tuple[int, ...]:
    """Signals every process of the attempt once; returns their pids, or () if no process is left.

    Never blocks; call it again until it finds nothing. Kill a live runner first, because this would signal
    the runner too.
    """
    command = recorded_command(folder, token)
    found = _scan({token: command}, (token,)).get(token, {})
    if command is not None and sig and 0 in found.values():
        leftovers.signal_group(command, token, sig)
    for pid, ticks in found.items():
        process_scan.send_signal(pid, ticks, sig)
        if sig == signal.SIGTERM:
            process_scan.send_signal(pid, ticks, signal.SIGCONT)
    return tuple(sorted(found))


def sweep(folder: Path, token: str, term_s: float = 2.0, deadline_s: float = 10.0) -> tuple[int, ...]:
    """Sends SIGTERM and, after `term_s` seconds, SIGKILL; returns the pids of the survivors.

    Returns when a scan finds nothing, or after `deadline_s` seconds.
    """
    start = time.monotonic()
    found = sweep_once(folder, token, signal.SIGTERM)
    while found and (passed := time.monotonic() - start) < deadline_s:
        time.sleep(_RESCAN_S)
        # Until SIGKILL, signal 0 only checks for processes: a SIGTERM handler that saves its work must run
        # once.
        found = sweep_once(folder, token, signal.SIGKILL if passed >= term_s else 0)
    return found
