"""Reads the status of an attempt from its folder, and sends requests to its runner through the folder.

A runner is alive if it holds the lock of the claim; readers query the kernel and never take the lock. It is
dead if the lock is free and the process that made the claim is gone: a copy of a folder has the claim without
its lock. An unusable file counts as absent and is reported. Without a usable claim, the runner in the store
decides what is alive; if the store has none, that stays unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gpu_scheduler.runner.folder import Problem, boot_id, content, opened
from gpu_scheduler.runner.parsing import (
    Follow,
    Runner,
    SeenClaim,
    SeenResult,
    SeenStop,
    claim_of,
    result_of,
    stop_of,
)
from gpu_scheduler.runner.prepare import replace
from gpu_scheduler.runner.tree import has_terminal, is_running, send

#: "unlocked": the lock is free, but the runner that made the claim is alive. "unclaimed": the claim is
#: missing or unusable, and the runner in the store is alive. "invalid": the claim is unusable, and the store
#: has no runner.
ClaimState = Literal["none", "void", "live", "unlocked", "unclaimed", "invalid", "dead"]
T = TypeVar("T")

_LOCK = "hhlli0l"  # struct flock
#: A later request never replaces a stronger one that is already in the folder.
_RANK = {"preempted": 1, "timed_out": 2}
#: Bytes at the end of `runner.err` that are searched for its last line.
_FAULT_BYTES = 4096


@dataclass(frozen=True)
class Seen:
    """The status of an attempt folder at one moment.

    runner: the process that holds the claim, for the store; damage: the problem with the files that report
    the end, such as "the file claim was removed"; folder_exists: whether the folder exists; window: whether a
    live runner that has a session still has its terminal, which it loses with the Screen window; None =
    unknown. `window` is for display only.
    """

    claim: ClaimState = "none"
    pid: int | None = None
    session: str | None = None
    stop: SeenStop | None = None
    withdrawn: bool = False
    result: SeenResult | None = None
    log: str | None = None
    strange: tuple[str, ...] = ()
    window: bool | None = None
    runner: Runner | None = None
    damage: str | None = None
    is_there: bool = True


def observe(folder: Path, token: str, known: Runner | None = None) -> Seen:
    """Reads the status of an attempt folder.

    Reads the claim first, because a runner that is found dead writes nothing afterwards. recorded_runner: the
    runner in the store.
    """
    reader = _Look(folder, token)
    claim, holder = reader.claim()
    state = _state_of(claim, holder, known, folder)
    result = reader.file("result", result_of)
    stop = reader.file("stop", stop_of)
    withdrawn = reader.file("withdrawn", stop_of)
    if stop is None and withdrawn is not None and withdrawn.follow == "kill":
        # The runner moved a cancel aside together with the request that it withdrew, and obeys it.
        stop = withdrawn
    runner = claim.runner if isinstance(claim, SeenClaim) else known if state == "unclaimed" else None
    session = claim.session if isinstance(claim, SeenClaim) else None
    anomalies = list(reader.strange.values())
    if result is None:
        anomalies += _fault(folder) if state == "none" else _anomaly(folder, state, claim, runner)
    return Seen(
        claim=state,
        pid=holder or (runner.pid if runner is not None else None),
        session=session,
        stop=stop,
        withdrawn=withdrawn is not None and withdrawn.follow == "withdraw",
        result=result,
        log=claim.log if isinstance(claim, SeenClaim) else None,
        strange=tuple(anomalies),
        window=has_terminal(holder) if state == "live" and holder and session and result is None else None,
        runner=runner if state == "live" and runner is not None and runner.pid == holder else None,
        damage=reader.damage(claim, state),
        is_there=state != "none" or _is_folder(folder),
    )


class _Look:
    """A reader of the files of one folder. anomalies: problems of unusable files, by file name."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token
        self.strange: dict[str, str] = {}

    def file(self, name: str, parse: Callable[[dict[str, Any], str], T | Problem]) -> T | None:
        """Returns the content of a file; None if it is absent or unusable. Raises OSError."""
        fd = opened(str(self._folder / name))
        if isinstance(fd, int):
            try:
                found = self._parsed(fd, parse)
            finally:
                os.close(fd)
        elif fd is None:
            return None
        else:
            found = fd
        if isinstance(found, Problem):
            self.strange[name] = f"{name} {found.text}; ignored"
            return None
        return found

    def claim(self) -> tuple[SeenClaim | Problem | None, int | None]:
        """Returns the claim, its problem, or None; and the pid that holds its lock. Raises OSError."""
        fd = opened(str(self._folder / "claim"))
        if not isinstance(fd, int):
            return fd, None
        try:
            holder = _holder(fd)
            return self._parsed(fd, claim_of), holder
        finally:
            os.close(fd)

    def damage(self, claim: SeenClaim | Problem | None, state: ClaimState) -> str | None:
        """Returns the problem with the files that report the end of an attempt; None if there is none."""
        if "result" in self.strange:
            return f"the file {self.strange['result'].removesuffix('; ignored')}"
        if isinstance(claim, Problem):
            return f"the file claim {claim.text}"
        return "the file claim was removed" if claim is None and state != "none" else None

    def _parsed(self, fd: int, parse: Callable[[dict[str, Any], str], T | Problem]) -> T | Problem:
        value = content(fd)
        return value if isinstance(value, Problem) else parse(value, self._token)


def _state_of(
    claim: SeenClaim | Problem | None, holder: int | None, known: Runner | None, folder: Path
) -> ClaimState:
    if isinstance(claim, SeenClaim):
        if claim.void:
            return "void"
        if holder is not None:
            return "live"
        return "unlocked" if _is_alive(claim.runner) else "dead"
    if known is not None and (claim is not None or _is_folder(folder)):
        return "unclaimed" if _is_alive(known) else "dead"
    return "none" if claim is None else "invalid"


def _anomaly(
    folder: Path, state: ClaimState, claim: SeenClaim | Problem | None, runner: Runner | None
) -> list[str]:
    """Returns the messages about a claim that is not as a runner leaves it."""
    pid = runner.pid if runner is not None else 0
    problem = claim.text if isinstance(claim, Problem) else "was removed"
    if state == "unlocked":
        return [
            f"its runner (pid {pid}) is alive but does not hold the claim in {folder}, which was"
            " copied or replaced; the processes of the job are not signalled from here"
        ]
    if state == "unclaimed":
        return [
            f"the file claim in {folder} {problem}; its runner (pid {pid}) is alive, and the job continues"
        ]
    if state == "invalid":
        return [
            f"the file claim in {folder} {problem}, so its runner is unknown; the job is neither ended nor"
            " restarted while processes of it are left; `cancel` ends them"
        ]
    return []


def _is_folder(folder: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode)
    except OSError:
        return False


def request_stop(
    folder: Path, token: str, cause: str, grace_s: float, follow: Follow, known: Runner | None = None
) -> bool:
    """Writes `stop` and wakes the runner; returns whether a live runner was signalled.

    cause: "cancelled" or "preempted"; grace_s: seconds between SIGTERM and SIGKILL; on_timeout: whether
    SIGKILL or a withdrawal follows the grace period; recorded_runner: as for `observe`. Returns False if the
    folder is missing or no process holds the claim. Raises OSError if the file cannot be written.
    """
    earlier = _Look(folder, token).file("stop", stop_of)
    if earlier is None or _rank(cause) >= _rank(earlier.cause):
        text = json.dumps({"token": token, "cause": cause, "grace_s": grace_s, "follow": follow})
        try:
            replace(folder, "stop", text.encode("ascii"))
        except FileNotFoundError:
            return False
    return nudge(folder, token, known)


def nudge(folder: Path, token: str, known: Runner | None = None) -> bool:
    """Wakes the runner so that it reads `stop`; returns whether a live runner was signalled."""
    return _signal_runner(folder, token, known, signal.SIGUSR1)


def kill_runner(folder: Path, token: str, known: Runner | None = None) -> bool:
    """Kills the runner and no other process; returns whether there was a live one."""
    return _signal_runner(folder, token, known, signal.SIGKILL)


def take_claim(folder: Path, token: str) -> bool:
    """Claims the attempt so that it can never run, and makes a missing folder; returns False if a runner has
    claimed it."""
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


def _is_alive(runner: Runner | None) -> bool:
    """Returns whether the process that made the claim is alive. An exiting one has released the lock."""
    if runner is None or runner.boot_id != boot_id():
        return False
    return is_running(runner.pid, runner.start_ticks)


def _holder(fd: int) -> int | None:
    """Returns the pid that holds the lock (0: in another pid namespace); None if it is free."""
    query = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return None if answer[0] == fcntl.F_UNLCK else answer[4]


def _signal_runner(folder: Path, token: str, known: Runner | None, number: signal.Signals) -> bool:
    fd = opened(str(folder / "claim"))
    if isinstance(fd, int):
        try:
            value = content(fd)
            claim = value if isinstance(value, Problem) else claim_of(value, token)
            if isinstance(claim, SeenClaim):
                return _signal_holder(fd, number)
        finally:
            os.close(fd)
    return _is_alive(known) and known is not None and send(known.pid, known.start_ticks, number)


def _signal_holder(fd: int, number: signal.Signals) -> bool:
    holder = _holder(fd)
    if not holder:
        return False
    try:
        process = os.pidfd_open(holder)
    except OSError:
        return False
    try:
        # Checked again: the pid of a holder that has just died may have been reused.
        if _holder(fd) != holder:
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def _rank(cause: str) -> int:
    return _RANK.get(cause, 3)


def _fault(folder: Path) -> list[str]:
    """Returns the last line of the error output of a runner that failed before its claim."""
    try:
        fd = opened(str(folder / "runner.err"))
        if not isinstance(fd, int):
            return []
        try:
            status = os.fstat(fd)
            regular = stat.S_ISREG(status.st_mode)
            data = os.pread(fd, _FAULT_BYTES, max(0, status.st_size - _FAULT_BYTES)) if regular else b""
        finally:
            os.close(fd)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return [f"the runner failed: {lines[-1]}"] if lines else []
