"""journal.jsonl: a line of JSON for everything that happened, appended for tools that follow it.

It is a view of the record. Only whole lines are ever in it; what could not be appended is appended later.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from gpu_scheduler.core.event import Event
from gpu_scheduler.store import events
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.events import to_json

NAME = "journal.jsonl"
#: Size at which the journal is put aside as journal.jsonl.1, in bytes.
MOST_BYTES = 50 * 1024 * 1024
#: Events that are appended at a time, between which the scheduler does what else there is to do.
AT_A_TIME = 2000
#: Bytes at its end in which its last line is looked for.
_END_BYTES = 1 << 20


class Journal:
    """The journal of a record. folder: where it lies, made if missing; may raise OSError.

    at: the id of the last event that is in it. behind: there may be more to append than was, for the time.
    """

    def __init__(self, store: Store, folder: Callable[[], Path], at: int) -> None:
        self._store = store
        self._folder = folder
        self.at = at
        self.behind = False
        self._joined = False

    def write(self) -> None:
        """Append what has happened since, at most AT_A_TIME events. Raises OSError, sqlite3.OperationalError;
        then it is to be tried again."""
        self.behind = False
        if not self._joined:
            self._join()
        new = events.events(self._store, self.at, AT_A_TIME)
        if new:
            self._append(new)
            self.behind = len(new) == AT_A_TIME

    def _join(self) -> None:
        """Go on after the last whole line, if that is of this record: what was remembered may be older, and a
        power cut may have taken lines that were appended."""
        path = self._folder() / NAME
        if path.exists():
            fd = _opened(path)
            try:
                last = _last_line(fd)
            finally:
                os.close(fd)
            found = None if last is None else _id_of(self._store, last)
            self.at = self.at if found is None else found
        self._joined = True

    def _append(self, new: Sequence[Event]) -> None:
        path = self._folder() / NAME
        fd = _opened(path)
        try:
            size = os.fstat(fd).st_size
            if size >= MOST_BYTES:
                os.replace(path, path.with_name(f"{NAME}.1"))
                os.close(fd)
                fd, size = _opened(path), 0
            for event in new:
                size += _write(fd, f"{to_json(event)}\n".encode("ascii"), size)
                self.at = event.id
        finally:
            os.close(fd)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd


def _write(fd: int, line: bytes, size: int) -> int:
    """Append a line, or nothing of it. size: of the file before. Raises OSError."""
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def _last_line(fd: int) -> bytes | None:
    """The last whole line. What follows it, torn off when its writer died, is removed."""
    size = os.fstat(fd).st_size
    start = max(0, size - _END_BYTES)
    end = os.pread(fd, size - start, start)
    whole = end.rfind(b"\n") + 1
    if whole < len(end) and (whole or start == 0):
        os.ftruncate(fd, start + whole)
    lines = end[:whole].splitlines()
    return lines[-1] if lines else None


def _id_of(store: Store, line: bytes) -> int | None:
    """The id of the event of this record that a line tells; None: it tells none."""
    try:
        said = json.loads(line)
        at = datetime.fromisoformat(said["at"]).timestamp()
        known = events.is_event(store, int(said["id"]), at, said["event"], said["job"] or 0)
    except (ValueError, TypeError, KeyError):
        return None
    return int(said["id"]) if known else None
