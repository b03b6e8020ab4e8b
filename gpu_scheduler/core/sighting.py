"""What an attempt's folder says, as the loop and the readers see it (docs/design.md, Attempt folder)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: "unlocked": the runner lives, but does not hold the lock of this claim, as in a copy of the folder.
#: "unclaimed": the claim is missing or cannot be used, and the runner that the record knows lives.
#: "invalid": the claim cannot be used, and the record knows no runner.
#: "unknown": the folder could not be looked at this time; nothing follows from that.
ClaimState = Literal["none", "void", "live", "unlocked", "unclaimed", "invalid", "dead", "unknown"]


@dataclass(frozen=True)
class StopNote:
    """The file `stop`: why, how long to wait between TERM and KILL (seconds), and what follows that."""

    cause: str
    grace_s: float
    follow: Literal["kill", "withdraw"] = "kill"


@dataclass(frozen=True)
class ResultNote:
    """The file `result`. `cause` is None when the command ended by itself, else "cancelled", "preempted",
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
class Evidence:
    """What a command that failed has left.

    tail: the end of its log. ids: the GPU ids that `--cuda` gave it, where they are not those (0, 1 …) that
    count what it sees; else empty. oom_retries, fail_retries: what its line says of them; None = nothing.
    """

    tail: str = ""
    ids: tuple[int, ...] = ()
    oom_retries: int | None = None
    fail_retries: int | None = None


@dataclass(frozen=True)
class Sighting:
    """One look at an attempt's folder.

    window: whether the Screen window of a live runner is still there; None = it has none, or that cannot be
    told. runner: pid and start ticks of the one that holds the claim. damage: what is wrong with the files
    that tell the end, such as "the file claim was removed". is_there: whether there is a folder.
    """

    claim: ClaimState = "none"
    pid: int | None = None
    session: str | None = None
    stop: StopNote | None = None
    withdrawn: bool = False
    result: ResultNote | None = None
    log: str | None = None
    strange: tuple[str, ...] = ()
    window: bool | None = None
    runner: tuple[int, int] | None = None
    damage: str | None = None
    is_there: bool = True
