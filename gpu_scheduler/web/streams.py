"""Streams of server-sent events: the events of the queue, and the log of a job as it grows; logs by range."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from gpu_scheduler.app.events import read_events
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.logs import LogProgress, open_log
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
_BUFFERED = 2000
_CHUNK = 1 << 18
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def sse(event: str, data: str, event_id: object = None) -> bytes:
    """Returns a server-sent event. data: one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


async def _paused(quiet_s: float) -> tuple[float, bytes]:
    """Waits until the next look. Returns how long the stream has been quiet, and a comment if one is due."""
    await asyncio.sleep(POLL_S)
    quiet_s += POLL_S
    return (0.0, b": \n\n") if quiet_s >= KEEP_ALIVE_S else (quiet_s, b"")


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
    """The newest events of a queue, read once for all streams."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._database = location.resolve().database  # once, because it may read thousands of mounts
        self._buffer: deque[tuple[int, str]] = deque(maxlen=_BUFFERED)
        self._newest: int | None = None
        self._version: tuple[int, ...] | None = None
        self._reading = asyncio.Lock()

    async def stream(self, context: Context, after: int | None) -> AsyncIterator[bytes]:
        """Yields events and comments. after: the id of the last event that is known; None for new events.

        Yields one event `reset` if events after that are missing.
        """
        await self._read()
        newest = self._newest or 0
        position = newest if after is None else after
        quiet_s = 0.0
        yield b": events\n\n"
        if position > newest:
            yield sse("reset", json.dumps({"newest": newest}), newest)
            position = newest
        while True:
            found = await self._after(position)
            if found and after is not None and found[0][0] != position + 1:
                yield sse("reset", json.dumps({"newest": self._newest}), self._newest)
                position, found = self._newest or 0, []
            after = position
            for event_id, line in found:
                yield sse("event", line if context.details else _without_command(line), event_id)
                position = after = event_id
            if found:
                quiet_s = 0.0
                continue
            quiet_s, comment = await _paused(quiet_s)
            if comment:
                yield comment
            await self._read()

    async def _read(self) -> None:
        """Reads what is new in the store, at most once for each version of it and once a second."""
        async with self._reading:
            # Two commits in one tick of the file system's clock may look like one.
            version = (*store_version(self._database), int(time.monotonic()))
            if version == self._version:
                return
            try:
                while True:
                    found, newest = await asyncio.to_thread(read_events, self._location, self._newest or 0)
                    if self._newest is None or newest < self._newest:
                        self._buffer.clear()  # the first reading, or another store
                        self._newest = newest
                        break
                    self._buffer.extend((one.id, to_json(one)) for one in found)
                    self._newest = found[-1].id if found else newest
                    if self._newest >= newest:
                        break
            except SchedulerError:
                return  # the store cannot be read at the moment
            self._version = version

    async def _after(self, position: int) -> list[tuple[int, str]]:
        if position >= (self._newest or 0):
            return []
        if self._buffer and self._buffer[0][0] <= position + 1:
            return [one for one in self._buffer if one[0] > position]
        try:
            found, _ = await asyncio.to_thread(read_events, self._location, position)
        except StoreNotFoundError:
            found = []
        return [(one.id, to_json(one)) for one in found]


def _without_command(line: str) -> str:
    values = json.loads(line)
    return json.dumps({key: one for key, one in values.items() if key not in ("command", "reason", "log")})


@dataclass
class Log:
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


async def follow_log(context: Context, job_id: int, last_id: str | None) -> AsyncIterator[bytes]:
    """Yields the log of a job as it grows, attempt by attempt, and then one event `end`.

    last_id: "ATTEMPT:OFFSET" of the last event that is known; None for the beginning of the latest attempt.
    """
    parts = log_parts(context, job_id, *map(int, (last_id or "0:0").split(":")))
    quiet_s = 0.0
    yield b": log\n\n"
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        attempt, at, text, end = part
        if text:
            quiet_s = 0.0
            found = {"attempt": attempt, "offset": at, "text": text}
            yield sse("log", json.dumps(found), f"{attempt}:{end}")
            continue
        quiet_s, comment = await _paused(quiet_s)
        if comment:
            yield comment
    job = await asyncio.to_thread(model_job, context, job_id)
    yield sse("end", json.dumps({"state": job["state"], "outcome": job["outcome"]}))
