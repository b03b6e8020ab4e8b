"""Appends events to journal.jsonl, one JSON line per event, for tools that follow the file.

The journal is derived from the store. It contains only complete lines. If an event cannot be appended, the
scheduler appends it later.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from gpu_scheduler.app.masking import event_without_secrets
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.store import events
from gpu_scheduler.store.store import Store
from gpu_scheduler.views.event_messages import to_json

FILE_NAME = "journal.jsonl"
#: When the journal has reached this size in bytes, it is renamed to journal.jsonl.1.
MAX_BYTES = 50 * 1024 * 1024
#: Maximum number of events appended at a time, so that the scheduler can do other work in between.
BATCH_SIZE = 2000
#: Number of bytes at the end of the file that are searched for its last line.
_TAIL_BYTES = 1 << 20


class Journal:
    """The journal of a store.

    folder: returns the journal's folder and creates it if it is missing; may raise OSError. last_id: the id
    of the last event in the journal. has_more: whether the last `write` may have left events to append.
    """

    def __init__(self, store: Store, folder: Callable[[], Path], last_id: int) -> None:
        self._store = store
        self._folder = folder
        self.last_id = last_id
        self.has_more = False
        self._is_positioned = False

    def write(self) -> None:
        """Appends at most BATCH_SIZE new events.

        Raises OSError or sqlite3.OperationalError; the caller then retries.
        """
        self.has_more = False
        if not self._is_positioned:
            self._find_position()
        new = events.events_after(self._store, self.last_id, BATCH_SIZE)
        if new:
            self._append(new)
            self.has_more = len(new) == BATCH_SIZE

    def _find_position(self) -> None:
        """Sets `last_id` to the event in the last complete line, if that event is in this store.

        The saved position may be older than that line, and a power cut may have lost appended lines.
        """
        path = self._folder() / FILE_NAME
        if path.exists():
            fd = _open(path)
            try:
                last = _last_line(fd)
            finally:
                os.close(fd)
            found = None if last is None else _event_id(self._store, last)
            self.last_id = self.last_id if found is None else found
        self._is_positioned = True

    def _append(self, new: Sequence[Event]) -> None:
        path = self._folder() / FILE_NAME
        fd = _open(path)
        try:
            size = os.fstat(fd).st_size
            if size >= MAX_BYTES:
                os.replace(path, path.with_name(f"{FILE_NAME}.1"))
                os.close(fd)
                fd, size = _open(path), 0
            for event in new:
                size += _append_line(fd, f"{to_json(event_without_secrets(event))}\n".encode("ascii"), size)
                self.last_id = event.id
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd


def _append_line(fd: int, line: bytes, size: int) -> int:
    """Appends a line completely or not at all. size: the current size of the file. Raises OSError."""
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def _last_line(fd: int) -> bytes | None:
    """Returns the last complete line; removes the partial line that a killed writer left after it."""
    size = os.fstat(fd).st_size
    start = max(0, size - _TAIL_BYTES)
    end = os.pread(fd, size - start, start)
    whole = end.rfind(b"\n") + 1
    if whole < len(end) and (whole or start == 0):
        os.ftruncate(fd, start + whole)
    lines = end[:whole].splitlines()
    return lines[-1] if lines else None


def _event_id(store: Store, line: bytes) -> int | None:
    """Returns the id of the event that a line describes; None if it is not an event of this store."""
    try:
        value = json.loads(line)
        at = datetime.fromisoformat(value["at"]).timestamp()
        known = events.is_event(store, int(value["id"]), at, value["event"], value["job"] or 0)
    except (ValueError, TypeError, KeyError):
        return None
    return int(value["id"]) if known else None
