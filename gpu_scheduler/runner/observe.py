"""What others may see of an attempt and tell its runner, through the folder alone.

Alive means that the claim's lock is held: readers ask the kernel, and take nothing. Dead means that it is
free and the process that made the claim is gone: a copy of a folder has the claim without its lock. A file
that cannot be used counts as absent and is reported. Without a claim that can be used, the runner that the
record knows tells what is alive, and where it knows none, nobody here does.
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

#: "unlocked": the lock is free, but the runner that made the claim lives. "unclaimed": the claim is missing
#: or cannot be used, and the runner that the record knows lives. "invalid": it cannot be used, and the
#: record knows no runner.
ClaimState = Literal["none", "void", "live", "unlocked", "unclaimed", "invalid", "dead"]
T = TypeVar("T")

_LOCK = "hhlli0l"  # struct flock
#: A later wish never hides a stronger one that is already in the folder.
_RANK = {"preempted": 1, "timed_out": 2}
#: Bytes at the end of `runner.err` in which its last line is looked for.
_FAULT_BYTES = 4096


@dataclass(frozen=True)
class Seen:
    """One look at an attempt's folder.

    runner: who holds the claim, for the record; damage: what is wrong with the files that tell the end, such
    as "the file claim was removed"; is_there: whether there is a folder; window: whether a live runner that
    has a session still has its terminal, which it loses with the window; None = not to be told. Nothing
    follows from that.
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
    """Look once. The claim first: whoever is found dead has written all that it will ever write.

    known: the runner that the record knows.
    """
    look = _Look(folder, token)
    claim, holder = look.claim()
    state = _state_of(claim, holder, known, folder)
    result = look.file("result", result_of)
    stop = look.file("stop", stop_of)
    taken = look.file("withdrawn", stop_of)
    if stop is None and taken is not None and taken.follow == "kill":
        # The runner took a cancel with the wish that it withdrew from; it obeys it.
        stop = taken
    runner = claim.runner if isinstance(claim, SeenClaim) else known if state == "unclaimed" else None
    session = claim.session if isinstance(claim, SeenClaim) else None
    strange = list(look.strange.values())
    if result is None:
        strange += _fault(folder) if state == "none" else _anomaly(folder, state, claim, runner)
    return Seen(
        claim=state,
        pid=holder or (runner.pid if runner is not None else None),
        session=session,
        stop=stop,
        withdrawn=taken is not None and taken.follow == "withdraw",
        result=result,
        log=claim.log if isinstance(claim, SeenClaim) else None,
        strange=tuple(strange),
        window=has_terminal(holder) if state == "live" and holder and session and result is None else None,
        runner=runner if state == "live" and runner is not None and runner.pid == holder else None,
        damage=look.damage(claim, state),
        is_there=state != "none" or _is_folder(folder),
    )


class _Look:
    """Reads the files of one folder. strange: what is wrong with them, by their names."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token
        self.strange: dict[str, str] = {}

    def file(self, name: str, parse: Callable[[dict[str, Any], str], T | Problem]) -> T | None:
        """The content of a file; None if it is absent or cannot be used. Raises OSError."""
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
        """The claim, or what is wrong with it, or None; and the pid that holds its lock. Raises OSError."""
        fd = opened(str(self._folder / "claim"))
        if not isinstance(fd, int):
            return fd, None
        try:
            holder = _holder(fd)
            return self._parsed(fd, claim_of), holder
        finally:
            os.close(fd)

    def damage(self, claim: SeenClaim | Problem | None, state: ClaimState) -> str | None:
        """What is wrong with the files that tell how an attempt ended; None: nothing."""
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
    """What is to be told of a claim that is not as a runner leaves it."""
    pid = runner.pid if runner is not None else 0
    problem = claim.text if isinstance(claim, Problem) else "was removed"
    if state == "unlocked":
        return [
            f"its runner (pid {pid}) is alive but does not hold the claim in {folder}, which was"
            " copied or replaced; nothing of the job is ended from here"
        ]
    if state == "unclaimed":
        return [f"the file claim in {folder} {problem}; its runner (pid {pid}) is alive, and the job goes on"]
    if state == "invalid":
        return [
            f"the file claim in {folder} {problem}, so that its runner is not known; while processes of the"
            " job are left, it is neither ended nor started again; `cancel` ends them"
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
    """Write `stop`, then wake the runner. True: a live runner was signalled.

    cause: "cancelled" or "preempted"; grace_s: seconds between TERM and KILL; follow: what comes after them.
    known: as for `observe`. False where the folder is missing or nobody holds the claim. Raises OSError where
    it cannot be written.
    """
    there = _Look(folder, token).file("stop", stop_of)
    if there is None or _rank(cause) >= _rank(there.cause):
        text = json.dumps({"token": token, "cause": cause, "grace_s": grace_s, "follow": follow})
        try:
            replace(folder, "stop", text.encode("ascii"))
        except FileNotFoundError:
            return False
    return nudge(folder, token, known)


def nudge(folder: Path, token: str, known: Runner | None = None) -> bool:
    """Tell the runner to look for `stop`. True: a live runner was signalled."""
    return _signal_runner(folder, token, known, signal.SIGUSR1)


def kill_runner(folder: Path, token: str, known: Runner | None = None) -> bool:
    """Kill the runner, and only it. True: there was a live one."""
    return _signal_runner(folder, token, known, signal.SIGKILL)


def take_claim(folder: Path, token: str) -> bool:
    """Take the attempt so that it can never run, in a folder made if missing. False: a runner has it."""
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
    """Whether the process that made the claim is there. An ending one has let go of the lock already."""
    if runner is None or runner.boot_id != boot_id():
        return False
    return is_running(runner.pid, runner.start_ticks)


def _holder(fd: int) -> int | None:
    """The pid that holds the lock (0: in another pid namespace); None if nobody does."""
    asked = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
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
        # Asked once more: the pid of a holder that has just died may be somebody else's by now.
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
    """The last line of what a runner that failed before its claim said."""
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
