"""Sends requests to the runner of an attempt by writing to the attempt folder and sending signals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from gpu_scheduler.attempts.folder_parsing import ClaimFile, parse_claim, parse_stop
from gpu_scheduler.attempts.folder_status import FolderReader, is_alive, observe
from gpu_scheduler.attempts.prepare import replace
from gpu_scheduler.core.model.attempt_status import RunnerIdentity, StopRequest
from gpu_scheduler.runner.folder import FileProblem, open_file, read_object
from gpu_scheduler.runner.process_scan import send_signal
from gpu_scheduler.store.scheduler_lock import lock_holder


def request_stop(
    folder: Path, token: str, stop: StopRequest, recorded_runner: RunnerIdentity | None = None
) -> bool:
    """Writes `stop` and wakes the runner; returns whether a live runner was signalled.

    recorded_runner: the runner in the store. Returns False if the folder is missing or no runner is alive.
    Raises OSError if the file cannot be written.
    """
    earlier = FolderReader(folder, token).read("stop", parse_stop)
    if stop.may_replace(earlier):
        stop = stop.combined_with(earlier)
        fields = {
            "token": token,
            "cause": stop.cause,
            "grace_s": stop.grace_s,
            "follow": stop.on_timeout,
            "id": stop.stop_id,
            "signal": stop.signal,
        }
        text = json.dumps(fields)
        try:
            replace(folder, "stop", text.encode("ascii"))
        except FileNotFoundError:
            return False
    return wake_runner(folder, token, recorded_runner)


def wake_runner(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> bool:
    """Wakes the runner so that it reads `stop`; returns whether a live runner was signalled."""
    return _signal_runner(folder, token, recorded_runner, signal.SIGUSR1)


def kill_runner(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> bool:
    """Kills the runner and no other process; returns whether a live runner was signalled."""
    return _signal_runner(folder, token, recorded_runner, signal.SIGKILL)


def void_claim(folder: Path, token: str) -> bool:
    """Claims the attempt so that it can never run; returns False if a runner has already claimed it.

    Creates the folder if it is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f".void.{os.getpid()}"
    replace(folder, name, json.dumps({"token": token, "void": True}).encode("ascii"))
    try:
        os.link(folder / name, folder / "claim")
        return True
    except FileExistsError:
        return observe(folder, token).claim == "void"
    finally:
        (folder / name).unlink()


def _signal_runner(
    folder: Path, token: str, recorded_runner: RunnerIdentity | None, number: signal.Signals
) -> bool:
    fd = open_file(str(folder / "claim"))
    if isinstance(fd, int):
        try:
            value = read_object(fd)
            claim = value if isinstance(value, FileProblem) else parse_claim(value, token)
            if isinstance(claim, ClaimFile):
                return _signal_holder(fd, number)
        finally:
            os.close(fd)
    return (
        is_alive(recorded_runner)
        and recorded_runner is not None
        and send_signal(recorded_runner.pid, recorded_runner.start_ticks, number)
    )


def _signal_holder(fd: int, number: signal.Signals) -> bool:
    holder = lock_holder(fd)
    if not holder:
        return False
    try:
        process = os.pidfd_open(holder)
    except OSError:
        return False
    try:
        # Check again: if the holder died before the pidfd was opened, its pid may have been reused.
        if lock_holder(fd) != holder:
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
