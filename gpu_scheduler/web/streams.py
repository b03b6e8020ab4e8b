"""Streams of server-sent events: the events of the queue, and the log of a job as it grows; logs by range."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.app.events import read_events
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.logs import LogProgress, open_log
from gpu_scheduler.core.model.event import Event
from gpu_scheduler.errors import (
    DamagedStoreError,
    NoSuchJobError,
    SchedulerError,
    SchemaError,
    StoreNotFoundError,
)
from gpu_scheduler.views.event_messages import to_json
from gpu_scheduler.web.operations import Context, model_job

#: Seconds between two looks at the store or at a log, and between two comments in a quiet stream.
POLL_S, KEEP_ALIVE_S = 0.25, 15.0
_CHUNK = 1 << 18
_NEVER = 1 << 62  # an id that no event reaches
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def sse(event: str, data: str, event_id: object = None) -> bytes:
    """Returns a server-sent event. data: one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


async def sent(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the parts of a stream, and comments while it is quiet.

    parts: yields b"" if there is nothing new at the moment; runs in a thread.
    """
    quiet_s = 0.0
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        if not part:
            await asyncio.sleep(POLL_S)
            quiet_s += POLL_S
        if part or quiet_s >= KEEP_ALIVE_S:
            quiet_s = 0.0
            yield part or b": \n\n"


def store_version(database: Path) -> tuple[int, ...]:
    """Returns a value that changes with every commit to a store; () if there is no store."""
    found: list[int] = []
    for path in (str(database), f"{database}-wal"):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(found)


class EventFeed:
    """The events of a queue after the one with the id `after`; None for those from now on.

    position: the id of the newest event that was read.
    """

    def __init__(self, location: Location, after: int | None) -> None:
        self.position = after
        self._location = location
        self._database = location.resolve().database  # once, because it may read thousands of mounts
        self._version: tuple[int, ...] | None = None

    def read(self) -> list[Event] | None:
        """Returns at most 1,000 new events. Reads an unchanged store only once a second.

        Returns None if events may be missing, as also the first time without `after`; the following ones come
        after the newest. Raises SchedulerError if the store cannot be read.
        """
        # Two commits in one tick of the file system's clock may look like one.
        version = (*store_version(self._database), int(time.monotonic()))
        if version == self._version:
            return []
        position = _NEVER if self.position is None else min(self.position, _NEVER)
        try:
            found, newest = read_events(self._location, position)
        except StoreNotFoundError:  # nothing has run here yet
            found, newest = [], 0
        if newest < position or (found and found[0].id != position + 1):
            self.position = newest
            return None
        self.position = found[-1].id if found else newest
        self._version = version if self.position == newest else None
        return found


def follow_events(context: Context, after: int | None) -> Iterator[bytes]:
    """Yields events, `reset` where some are missing, and b"" if there are none at the moment.

    after: the id of the last event that is known; None for new events.
    """
    feed = EventFeed(context.location, after)
    if after is None:
        with suppress(SchedulerError):
            feed.read()
    yield b": events\n\n"
    while True:
        try:
            found = feed.read()
        except SchedulerError:
            found = []  # the store cannot be read at the moment
        if found is None:
            yield sse("reset", json.dumps({"newest": feed.position}), feed.position)
        else:
            show = to_json if context.details else _without_command
            yield b"".join(sse("event", show(event), event.id) for event in found)


def _without_command(event: Event) -> str:
    values = json.loads(to_json(event))
    return json.dumps({key: one for key, one in values.items() if key not in ("command", "reason", "log")})


class Log(Struct):
    """An open log. The caller closes `file`. is_over: whether it is complete."""

    file: FileIO
    size: int
    attempt: int
    is_over: bool

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from `start` to `end`."""
        while start < end and (data := os.pread(self.file.fileno(), min(_CHUNK, end - start), start)):
            start += len(data)
            yield data


def open_log_file(location: Location, job_id: int, attempt: int | None = None) -> Log:
    """Opens the log of an attempt, None for the latest, without following a link.

    Raises NoSuchJobError if the job, the attempt or its log does not exist.
    """
    try:
        with open_log(location, job_id, attempt) as log:
            number, path, is_over = log.number, log.path, log.advance() is not LogProgress.RUNNING
        file = FileIO(path, opener=lambda name, flags: os.open(name, flags | _OPEN))
    except SchedulerError as error:
        if isinstance(error, (DamagedStoreError, SchemaError)):
            raise
        raise NoSuchJobError(str(error)) from None
    except OSError as error:
        raise NoSuchJobError(f"the log of job {job_id} cannot be read: {error.strerror}") from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise NoSuchJobError(f"the log of job {job_id} is not a file")
    return Log(file, status.st_size, number, is_over)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the end of a Range header with one range; None for the whole file.

    Raises ValueError if no byte is in the range. A header that is not understood counts as none (RFC 9110).
    """
    found = re.fullmatch(r"\s*bytes\s*=\s*([0-9]{0,15})-([0-9]{0,15})\s*", header or "")
    first, last = found.groups() if found else ("", "")
    if not (first or last) or (first and last and int(first) > int(last)):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise ValueError(header)
    return start, end


def log_parts(
    context: Context, job_id: int, attempt: int = 0, position: int = 0
) -> Iterator[tuple[int, int, str, int]]:
    """Yields a job's log, attempt by attempt, until the job has ended: attempt, offset, text and end.

    The text is empty if there is nothing new at the moment. attempt: the one to begin with, at `position`; 0
    for the latest. Raises NoSuchJobError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        is_over, data = model_job(context, job_id)["status"] in ("completed", "failed"), b""
        for number in (attempt or None, None):  # the rest of that one, then the latest
            with suppress(SchedulerError):  # the job waits, or its log is gone
                log = open_log_file(context.location, job_id, number)
                if log.attempt != attempt:
                    attempt, position = log.attempt, 0
                    decoder.reset()
                position = min(position, log.size)  # the log was shortened
                is_over = is_over and log.is_over
                with log.file:
                    data = os.pread(log.file.fileno(), _CHUNK, position)
            if data:
                break
        if is_over and not data:
            return
        text, at, position = decoder.decode(data), position, position + len(data)
        yield attempt, at, text, position - len(decoder.getstate()[0])  # without a part of a character


def follow_log(context: Context, job_id: int, last_id: str | None) -> Iterator[bytes]:
    """Yields the log of a job as it grows, attempt by attempt, then one event `end`; b"" if nothing is new.

    last_id: "ATTEMPT:OFFSET" of the last event that is known; None for the beginning of the latest attempt.
    """
    yield b": log\n\n"
    for attempt, at, text, end in log_parts(context, job_id, *map(int, (last_id or "0:0").split(":"))):
        found = {"attempt": attempt, "offset": at, "text": text}
        yield sse("log", json.dumps(found), f"{attempt}:{end}") if text else b""
    job = model_job(context, job_id)
    yield sse("end", json.dumps({"state": job["state"], "outcome": job["outcome"]}))
