"""Reads the status of an attempt from its folder.

A runner is alive if it holds the lock on the claim. Readers ask the kernel which process holds the lock; they
never take it themselves. A runner is dead if the lock is free and the process that made the claim is gone. A
free lock alone proves nothing, because the claim in a copied folder has no lock. An unusable file is reported
and treated as absent. If the claim is unusable, the runner recorded in the store is checked instead. If the
store does not record a runner, the runner is unknown.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.attempts.folder_parsing import ClaimFile, parse_claim, parse_result, parse_stop
from gpu_scheduler.attempts.log_tail import read_tail
from gpu_scheduler.attempts.prepare import is_prepared
from gpu_scheduler.attempts.sweep import recorded_command
from gpu_scheduler.core.model.attempt_status import AttemptStatus, ClaimState, RunnerIdentity
from gpu_scheduler.runner.folder import FileProblem, boot_id, open_file, read_object
from gpu_scheduler.runner.process_scan import has_terminal, is_running
from gpu_scheduler.store.scheduler_lock import lock_holder

T = TypeVar("T")

#: Number of bytes to read from the end of `runner.err` in order to find its last line.
_ERROR_TAIL_BYTES = 4096


def observe(folder: Path, token: str, recorded_runner: RunnerIdentity | None = None) -> AttemptStatus:
    """Reads an attempt's status from its folder. recorded_runner: the runner in the store. Raises OSError."""
    status = _read_status(folder, token, recorded_runner)
    if status.claim != "none":
        return status
    if recorded_command(folder, token) is None:
        return replace(status, folder_complete=is_prepared(folder))
    # A runner claims the attempt before it starts the command. The claim was therefore made after the first
    # read, or somebody removed it.
    return replace(_read_status(folder, token, recorded_runner), command_began=True)


def _read_status(folder: Path, token: str, recorded_runner: RunnerIdentity | None) -> AttemptStatus:
    # Read the claim first: if its runner is dead, the other files can no longer change.
    reader = FolderReader(folder, token)
    claim, holder = reader.read_claim()
    state = _claim_state(claim, holder, recorded_runner, folder)
    result = reader.read("result", parse_result)
    stop = reader.read("stop", parse_stop)
    withdrawn = reader.read("withdrawn", parse_stop)
    if stop is None and withdrawn is not None and withdrawn.on_timeout == "kill":
        # A cancel replaced the request that the runner was withdrawing. The runner therefore renamed the
        # cancel instead, but still obeys it.
        stop, withdrawn = withdrawn, None
    elif stop is not None and withdrawn is not None and stop.is_repetition_of(withdrawn):
        stop = None  # written again by somebody who could not know that the runner has withdrawn it
    runner = (
        claim.runner if isinstance(claim, ClaimFile) else recorded_runner if state == "unclaimed" else None
    )
    session = claim.session if isinstance(claim, ClaimFile) else None
    anomalies = list(reader.anomalies.values())
    if result is None:
        anomalies += (
            _runner_error(folder) if state == "none" else _claim_anomalies(folder, state, claim, runner)
        )
    shows_window = state == "live" and bool(session) and result is None
    return AttemptStatus(
        claim=state,
        pid=holder or (runner.pid if runner is not None else None),
        session=session,
        stop=stop,
        withdrawn=withdrawn if withdrawn is not None and withdrawn.on_timeout == "withdraw" else None,
        result=result,
        log=claim.log if isinstance(claim, ClaimFile) else None,
        anomalies=tuple(anomalies),
        window_open=has_terminal(holder) if shows_window and holder else None,
        runner=runner if state == "live" and runner is not None and runner.pid == holder else None,
        damage=reader.damage(claim, state),
        folder_exists=state != "none" or _is_folder(folder),
    )


class FolderReader:
    """Reads the files of one attempt folder. anomalies: the problem with each unusable file, by file name."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token
        self.anomalies: dict[str, str] = {}

    def read(self, name: str, parse: Callable[[dict[str, Any], str], T | FileProblem]) -> T | None:
        """Returns the content of a file; None if it is absent or unusable. Raises OSError."""
        fd = open_file(str(self._folder / name))
        if isinstance(fd, int):
            try:
                found = self._parse(fd, parse)
            finally:
                os.close(fd)
        elif fd is None:
            return None
        else:
            found = fd
        if isinstance(found, FileProblem):
            self.anomalies[name] = f"{name} {found.text}; ignored"
            return None
        return found

    def read_claim(self) -> tuple[ClaimFile | FileProblem | None, int | None]:
        """Returns the claim or its problem, and the pid of the process that holds the lock on the claim.

        Each of the two is None if it does not exist. Raises OSError.
        """
        fd = open_file(str(self._folder / "claim"))
        if not isinstance(fd, int):
            return fd, None
        try:
            holder = lock_holder(fd)
            return self._parse(fd, parse_claim), holder
        finally:
            os.close(fd)

    def damage(self, claim: ClaimFile | FileProblem | None, state: ClaimState) -> str | None:
        """Returns the problem with the claim or the result; None if there is none."""
        if "result" in self.anomalies:
            return f"the file {self.anomalies['result'].removesuffix('; ignored')}"
        if isinstance(claim, FileProblem):
            return f"the file claim {claim.text}"
        return "the file claim was removed" if claim is None and state != "none" else None

    def _parse(self, fd: int, parse: Callable[[dict[str, Any], str], T | FileProblem]) -> T | FileProblem:
        value = read_object(fd)
        return value if isinstance(value, FileProblem) else parse(value, self._token)


def _claim_state(
    claim: ClaimFile | FileProblem | None,
    holder: int | None,
    recorded_runner: RunnerIdentity | None,
    folder: Path,
) -> ClaimState:
    if isinstance(claim, ClaimFile):
        if claim.void:
            return "void"
        if holder is not None:
            return "live"
        return "unlocked" if is_alive(claim.runner) else "dead"
    if recorded_runner is not None and (claim is not None or _is_folder(folder)):
        return "unclaimed" if is_alive(recorded_runner) else "dead"
    return "none" if claim is None else "invalid"


def _claim_anomalies(
    folder: Path, state: ClaimState, claim: ClaimFile | FileProblem | None, runner: RunnerIdentity | None
) -> list[str]:
    """Returns warnings about a claim that was removed, damaged or copied."""
    pid = runner.pid if runner is not None else 0
    problem = claim.text if isinstance(claim, FileProblem) else "was removed"
    if state == "unlocked":
        return [
            f"its runner (pid {pid}) is alive but has no lock on the claim in {folder}, because the folder"
            " was copied or replaced; this scheduler does not signal the job's processes"
        ]
    if state == "unclaimed":
        return [
            f"the file claim in {folder} {problem}; its runner (pid {pid}) is alive, and the job continues"
        ]
    if state == "invalid":
        return [
            f"the file claim in {folder} {problem}, so its runner is unknown; the scheduler neither ends nor"
            " restarts the job while any of its processes are left; `cancel` ends them"
        ]
    return []


def _is_folder(folder: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode)
    except OSError:
        return False


def is_alive(runner: RunnerIdentity | None) -> bool:
    """Returns whether this runner is alive. An exiting runner, which has released its lock, is not."""
    if runner is None or runner.boot_id != boot_id():
        return False
    return is_running(runner.pid, runner.start_ticks)


def _runner_error(folder: Path) -> list[str]:
    """Returns a message with the last error line of a runner that failed before it claimed the attempt."""
    try:
        lines = read_tail(str(folder / "runner.err"), _ERROR_TAIL_BYTES).strip().splitlines()
    except OSError:
        return []
    return [f"the runner failed: {lines[-1]}"] if lines else []
