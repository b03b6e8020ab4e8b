"""What others may see of an attempt and tell its runner, through the folder alone.

Alive means that the claim's lock is held: readers ask the kernel, and take nothing. Dead means that it is
free and the process that made the claim is gone: a copy of a folder has the claim without its lock. A file
that carries another token counts as absent and is reported.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.runner.prepare import replace
from gpu_scheduler.runner.tree import has_terminal, is_running

#: "unlocked": the lock is free, but the runner that made the claim lives.
ClaimState = Literal["none", "void", "live", "unlocked", "dead"]
Follow = Literal["kill", "withdraw"]

_LOCK = "hhlli0l"  # struct flock
#: A later wish never hides a stronger one that is already in the folder.
_RANK = {"preempted": 1, "timed_out": 2}


@dataclass(frozen=True)
class SeenStop:
    """The file `stop`: why, seconds between TERM and KILL, and what follows them."""

    cause: str
    grace_s: float
    follow: Follow = "kill"


@dataclass(frozen=True)
class SeenResult:
    """The file `result`. cause: None when the command ended by itself, else "cancelled", "preempted",
    "timed_out" or "machine". Exactly one of exit_code and signal is set once the command was spawned.
    oom_kills: processes that the kernel killed meanwhile for want of memory, None = unknown. shortage: errno
    of the shortage of processes, memory or open files for which the command did not begin."""

    cause: str | None
    exit_code: int | None
    signal: int | None
    began: bool
    message: str | None
    survivors: tuple[int, ...]
    started_at: float | None
    ended_at: float
    oom_kills: int | None = None
    shortage: int | None = None


@dataclass(frozen=True)
class Seen:
    """One look at an attempt's folder. window: whether a live runner that has a session still has its
    terminal, which it loses with the window; None = not to be told. Nothing follows from that."""

    claim: ClaimState = "none"
    pid: int | None = None
    session: str | None = None
    stop: SeenStop | None = None
    withdrawn: bool = False
    result: SeenResult | None = None
    log: str | None = None
    strange: tuple[str, ...] = ()
    window: bool | None = None


def observe(folder: Path, token: str) -> Seen:
    """Look once. The claim first: whoever is found dead has written all that it will ever write."""
    strange: list[str] = []
    claim, state, holder = _claim(folder, token, strange)
    result = _read(folder, "result", token, strange)
    stop = _stop(folder, "stop", token, strange)
    taken = _stop(folder, "withdrawn", token, strange)
    if stop is None and taken is not None and taken.follow == "kill":
        # The runner took a cancel with the wish that it withdrew from; it obeys it.
        stop = taken
    if result is None and state == "none":
        strange += _fault(folder)
    if result is None and state == "unlocked":
        strange.append(
            f"its runner (pid {claim['pid']}) is alive but does not hold the claim in {folder}, which was"
            " copied or replaced; nothing of the job is ended from here"
        )
    return Seen(
        claim=state,
        pid=holder or claim.get("pid"),
        session=claim.get("session"),
        stop=stop,
        withdrawn=taken is not None and taken.follow == "withdraw",
        result=None if result is None else _result(result),
        log=claim.get("log"),
        strange=tuple(strange),
        window=has_terminal(holder) if holder and claim.get("session") and result is None else None,
    )


def request_stop(folder: Path, token: str, cause: str, grace_s: float, follow: Follow) -> bool:
    """Write `stop`, then wake the runner. True: a live runner was signalled.

    cause: "cancelled" or "preempted"; grace_s: seconds between TERM and KILL; follow: what comes after them.
    False where the folder is missing or nobody holds the claim. Raises OSError where it cannot be written.
    """
    there = _stop(folder, "stop", token, [])
    if there is None or _rank(cause) >= _rank(there.cause):
        text = json.dumps({"token": token, "cause": cause, "grace_s": grace_s, "follow": follow})
        try:
            replace(folder, "stop", text.encode("ascii"))
        except FileNotFoundError:
            return False
    return nudge(folder, token)


def nudge(folder: Path, token: str) -> bool:
    """Tell the runner to look for `stop`. True: a live runner was signalled."""
    return _signal_holder(folder, token, signal.SIGUSR1)


def kill_runner(folder: Path, token: str) -> bool:
    """Kill the runner, and only it. True: there was a live one."""
    return _signal_holder(folder, token, signal.SIGKILL)


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


def _claim(folder: Path, token: str, strange: list[str]) -> tuple[dict[str, Any], ClaimState, int | None]:
    fd = _open(folder, "claim")
    if fd is None:
        return {}, "none", None
    try:
        holder = _holder(fd)
        claim = _whole(fd, "claim", strange)
    finally:
        os.close(fd)
    if claim is None:
        # It appeared whole and locked: one that is neither was cut short with its runner, by a power cut.
        return {}, "dead" if holder is None else "none", None
    if not _is_of(claim, "claim", token, strange):
        return {}, "none", None
    if claim.get("void"):
        return {}, "void", None
    if holder is not None:
        return claim, "live", holder
    return claim, "unlocked" if _runner_lives(claim) else "dead", None


def _runner_lives(claim: dict[str, Any]) -> bool:
    """Whether the process that made the claim is there. An ending one has let go of the lock already."""
    pid, ticks = claim.get("pid"), claim.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int) or claim.get("boot_id") != boot_id():
        return False
    return is_running(pid, ticks)


def _holder(fd: int) -> int | None:
    """The pid that holds the lock (0: in another pid namespace); None if nobody does."""
    asked = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if answer[0] == fcntl.F_UNLCK else answer[4]


def _signal_holder(folder: Path, token: str, number: signal.Signals) -> bool:
    fd = _open(folder, "claim")
    if fd is None:
        return False
    try:
        if _object(fd, "claim", token, []) is None:
            return False
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
    finally:
        os.close(fd)


def _open(folder: Path, name: str) -> int | None:
    try:
        return os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read(folder: Path, name: str, token: str, strange: list[str]) -> dict[str, Any] | None:
    fd = _open(folder, name)
    if fd is None:
        return None
    try:
        return _object(fd, name, token, strange)
    finally:
        os.close(fd)


def _object(fd: int, name: str, token: str, strange: list[str]) -> dict[str, Any] | None:
    value = _whole(fd, name, strange)
    return value if value is not None and _is_of(value, name, token, strange) else None


def _whole(fd: int, name: str, strange: list[str]) -> dict[str, Any] | None:
    data = b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        strange.append(f"{name} is not whole ({len(data)} bytes); ignored")
        return None
    return value


def _is_of(value: dict[str, Any], name: str, token: str, strange: list[str]) -> bool:
    if value.get("token") == token:
        return True
    strange.append(f"{name} carries another token ({str(value.get('token'))[:8]}…); ignored")
    return False


def _stop(folder: Path, name: str, token: str, strange: list[str]) -> SeenStop | None:
    value = _read(folder, name, token, strange)
    return (
        None if value is None else SeenStop(value["cause"], value["grace_s"], cast(Follow, value["follow"]))
    )


def _result(value: dict[str, Any]) -> SeenResult:
    return SeenResult(
        cause=value["cause"],
        exit_code=value["exit_code"],
        signal=value["signal"],
        began=value["began"],
        message=value["message"],
        survivors=tuple(value["survivors"]),
        started_at=value["started_at"],
        ended_at=value["ended_at"],
        oom_kills=value.get("oom_kills"),
        shortage=value.get("shortage"),
    )


def _rank(cause: str) -> int:
    return _RANK.get(cause, 3)


def _fault(folder: Path) -> list[str]:
    """The last line of what a runner that failed before its claim said."""
    try:
        lines = (folder / "runner.err").read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return []
    return [f"the runner failed: {lines[-1]}"] if lines else []
