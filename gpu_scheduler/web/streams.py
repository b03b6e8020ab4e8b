"""Streams of server-sent events: the events of the queue, and the log of a job as it grows; logs by range."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_CHUNK = 1 << 16


def sse(event: str, data: str, event_id: object = None) -> bytes:
    """Returns a server-sent event. data: one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


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
            await asyncio.sleep(POLL_S)
            quiet_s += POLL_S
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield b": \n\n"
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
class LogFile:
    """An open log. The caller closes it. is_over: whether it is complete."""

    fd: int
    size: int
    attempt: int
    progress: LogProgress

    @property
    def is_over(self) -> bool:
        """True if nothing will be added to the log."""
        return self.progress is not LogProgress.RUNNING

    def close(self) -> None:
        """Closes the log."""
        os.close(self.fd)

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the bytes from `start` to `end`, and closes the log."""
        with ExitStack() as at_end:
            at_end.callback(self.close)
            while start < end and (data := os.pread(self.fd, min(_CHUNK, end - start), start)):
                start += len(data)
                yield data


def open_log_file(location: Location, job_id: int, attempt: int | None = None) -> LogFile:
    """Opens the log of an attempt, None for the latest, without following a link.

    Raises NoSuchJobError if the job, the attempt or its log does not exist.
    """
    try:
        with open_log(location, job_id, attempt) as log:
            number, path, progress = log.number, log.path, log.advance()
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except SchedulerError as error:
        if isinstance(error, (DamagedStoreError, SchemaError)):
            raise
        raise NoSuchJobError(str(error)) from None
    except OSError as error:
        raise NoSuchJobError(f"the log of job {job_id} cannot be read: {error.strerror}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NoSuchJobError(f"the log of job {job_id} is not a file")
    return LogFile(fd, status.st_size, number, progress)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the end of a Range header with one range; None for the whole file.

    Raises ValueError if no byte is in the range. A header that is not understood counts as none (RFC 9110).
    """
    unit, _, text = (header or "").partition("=")
    first, dash, last = text.strip().partition("-")
    numbers = [one for one in (first, last) if one]
    is_plain = all(one.isascii() and one.isdigit() and len(one) < 16 for one in numbers)
    if unit.strip() != "bytes" or not dash or not numbers or not is_plain:
        return None
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise ValueError(header)
    return start, end


async def follow_log(context: Context, job_id: int, last_id: str | None) -> AsyncIterator[bytes]:
    """Yields the log of a job as it grows, attempt by attempt, and then one event `end`.

    last_id: "ATTEMPT:OFFSET" of the last event that is known; None for the beginning of the latest attempt.
    """
    wanted, _, offset = (last_id or "").partition(":")
    attempt, position = (int(wanted), int(offset)) if wanted.isdigit() and offset.isdigit() else (0, 0)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    quiet_s = 0.0
    yield b": log\n\n"
    while True:
        job, logs = await asyncio.to_thread(_look, context, job_id, attempt)
        for log in logs:
            try:
                if log.attempt != attempt:
                    attempt, position = log.attempt, 0
                    decoder.reset()
                position = min(position, log.size)  # the log was shortened
                while data := await asyncio.to_thread(os.pread, log.fd, _CHUNK, position):
                    at, position, quiet_s = position, position + len(data), 0.0
                    text = {"attempt": attempt, "offset": at, "text": decoder.decode(data)}
                    known = position - len(decoder.getstate()[0])  # without a part of a character
                    yield sse("log", json.dumps(text), f"{attempt}:{known}")
            finally:
                log.close()
        if job["status"] in ("completed", "failed") and all(log.is_over for log in logs):
            yield sse("end", json.dumps({"state": job["state"], "outcome": job["outcome"]}))
            return
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S
        if quiet_s >= KEEP_ALIVE_S:
            quiet_s = 0.0
            yield b": \n\n"


def _look(context: Context, job_id: int, attempt: int) -> tuple[dict[str, Any], list[LogFile]]:
    """Returns the job, the log of this attempt and that of the latest one. Raises NoSuchJobError."""
    job = model_job(context, job_id)
    found = []
    for number in (attempt or None, None):
        with suppress(SchedulerError):
            found.append(open_log_file(context.location, job_id, number))
    if len(found) == 2 and found[0].attempt == found[1].attempt:
        found.pop().close()
    return job, found
