"""Appends events to journal.jsonl, one JSON line each, for tools that follow it.

The journal is derived from the store. It contains only complete lines; events that could not be appended are
appended later.
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
#: Size in bytes at which the journal is renamed to journal.jsonl.1.
MOST_BYTES = 50 * 1024 * 1024
#: Maximum number of events appended at a time, so that the scheduler can do other work in between.
AT_A_TIME = 2000
#: Number of bytes at the end of the file that are searched for its last line.
_END_BYTES = 1 << 20


class Journal:
    """The journal of a store. folder: returns its folder, creating it if missing; may raise OSError.

    last_id: of the last event in it. has_more: the last `write` may have left events to append.
    """

    def __init__(self, store: Store, folder: Callable[[], Path], at: int) -> None:
        self._store = store
        self._folder = folder
        self.at = at
        self.behind = False
        self._joined = False

    def write(self) -> None:
        """Appends new events, at most BATCH_SIZE. Raises OSError, sqlite3.OperationalError; the caller then
        retries."""
        self.behind = False
        if not self._joined:
            self._join()
        new = events.events(self._store, self.at, AT_A_TIME)
        if new:
            self._append(new)
            self.behind = len(new) == AT_A_TIME

    def _join(self) -> None:
        """Continues after the last complete line if it is an event of this store: the saved position may be
        older, and a power cut may have lost appended lines."""
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
    """Appends a line completely or not at all. size: of the file before. Raises OSError."""
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def _last_line(fd: int) -> bytes | None:
    """Returns the last complete line; removes the partial line that a killed writer left after it."""
    size = os.fstat(fd).st_size
    start = max(0, size - _END_BYTES)
    end = os.pread(fd, size - start, start)
    whole = end.rfind(b"\n") + 1
    if whole < len(end) and (whole or start == 0):
        os.ftruncate(fd, start + whole)
    lines = end[:whole].splitlines()
    return lines[-1] if lines else None


def _id_of(store: Store, line: bytes) -> int | None:
    """Returns the id of the event that a line describes; None if it is not an event of this store."""
    try:
        value = json.loads(line)
        at = datetime.fromisoformat(value["at"]).timestamp()
        known = events.is_event(store, int(value["id"]), at, value["event"], value["job"] or 0)
    except (ValueError, TypeError, KeyError):
        return None
    return int(value["id"]) if known else None
