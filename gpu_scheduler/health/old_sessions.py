"""Finds live Screen sessions of the older scheduler, whose jobs are not in a store.

The search reads only processes, because `screen -ls` misses new sessions and shows dead ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from msgspec import Struct

from gpu_scheduler.core.text.formatting import format_duration
from gpu_scheduler.system.procfs import Proc

_SESSION_NAME = re.compile(r"gpujob_(?P<gpus>[^_]*)_.*")
#: Why the first start is refused while jobs of the older scheduler are running, and the remedy.
REFUSAL = "jobs of the older scheduler are running in Screen; their lines would run a second time here"
REMEDY = (
    "start the scheduler when they have ended, or remove their lines from jobs.txt and add"
    " --ignore-old-sessions"
)


class OldSession(Struct, frozen=True):
    """A live session.

    name: Screen's `PID.NAME`; gpus: the GPUs in that name; started_at: seconds since 1970.
    """

    name: str
    gpus: str
    started_at: float

    def describe(self, now: float) -> str:
        """Describes the session: name, GPUs, age, and the command to open it. now: seconds since 1970."""
        age = format_duration(now - self.started_at)
        gpus = f"GPU{'s' if ',' in self.gpus else ''} {self.gpus}"
        return f"{self.name}, {gpus}, started {age} ago (`screen -r {self.name}` opens it)"


def old_sessions(proc: Proc | None = None) -> list[OldSession]:
    """Returns this user's `gpujob_*` sessions in which commands run but no process has our token."""
    proc = Proc() if proc is None else proc
    found = {}
    for process in proc.processes():
        words = proc.command_line(process.pid)
        name = _session_name(words)
        if name is not None and proc.user_id(process.pid) == os.getuid():
            found[process.pid] = (process, name, words)
    if not found:
        return []
    children: dict[int, list[int]] = {pid: [] for pid in found}
    for process in proc.processes():
        if process.parent in children and not process.ended:
            children[process.parent].append(process.pid)
    return [
        OldSession(f"{pid}.{name[0]}", name["gpus"], proc.started_at(process))
        for pid, (process, name, words) in sorted(found.items())
        if _runs_without_token(proc, children[pid], words)
    ]


def _session_name(words: Sequence[str]) -> re.Match[str] | None:
    """Returns the session name in a Screen server's command line (`SCREEN -dmS NAME …`), or None."""
    if not words or PurePosixPath(words[0]).name != "SCREEN":
        return None
    for option, value in pairwise(words):
        if re.fullmatch(r"-[A-Za-z]*S", option):
            return _SESSION_NAME.fullmatch(value)
    return None


def _runs_without_token(proc: Proc, children: Sequence[int], words: Sequence[str]) -> bool:
    """Returns whether a session's children run commands, and none of them has our token.

    words: the command line of the session process.
    """
    # Until a child executes the window's command, it is a copy of the session process.
    begun = [pid for pid in children if proc.command_line(pid) not in ([], words)]
    return bool(begun) and not any(proc.token(pid) for pid in begun)
