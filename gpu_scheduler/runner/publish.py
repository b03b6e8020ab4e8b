"""Writes the files with which a runner claims an attempt and reports on it: claim, command.pid and result."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from _json import encode_basestring_ascii

from .folder import COMMAND_FILE, COMMAND_SIZE, exists, init_ticks, move_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")
    #: A value in a file. A tuple contains texts.
    Value = str | int | float | list[int] | tuple[str, ...] | None

#: Bytes reserved before the command starts, so that the result can be written even if the disk fills up
#: later.
_RESERVED = 512
#: Seconds for which a runner waits for space if the disk is full before it has claimed its attempt. After
#: about the same time, the loop launches the attempt again.
_DISK_FULL_S = 10.0
_DISK_FULL_RETRY_S = 0.1


def claim(folder: int, identity: Mapping[str, str | int | None]) -> int | None:
    """Claims the attempt; returns the descriptor that holds the lock, or None if it is already claimed.

    Keep the descriptor open and never open the file again, because closing any descriptor of the file
    releases the lock. Raises OSError if the file cannot be written.
    """
    return _retry_while_disk_full(folder, lambda: _claim(folder, identity))


def _claim(folder: int, identity: Mapping[str, str | int | None]) -> int | None:
    name = f".claim.{os.getpid()}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        _write_all(fd, to_json(identity))
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(name, "claim", src_dir_fd=folder, dst_dir_fd=folder)
        return fd
    except FileExistsError:
        return None
    finally:
        os.unlink(name, dir_fd=folder)


def reserve_command(folder: int, token: str, boot: str) -> int | None:
    """Opens the file in which the command records its pid, start time and session; returns None on failure.

    Writes the first line, after which the command continues. The line identifies the boot and the pid
    namespace, because the same pid can belong to another process after a container is restarted. Also
    reserves the space for the command's record, so that a full disk cannot truncate it.
    """
    try:
        header = f"{token} {boot} {init_ticks()}\n".encode("ascii")
        fd = os.open(COMMAND_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            _write_all(fd, header.ljust(COMMAND_SIZE))
            os.lseek(fd, len(header), os.SEEK_SET)
            return fd
        except OSError:
            os.close(fd)
    except OSError:
        pass
    return None


class ResultWriter:
    """Writes the file `result`, for which it reserves space before the command starts."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._name = f".result.{os.getpid()}"
        self._fd = _retry_while_disk_full(folder, self._reserve)

    def _reserve(self) -> int:
        fd = self._open()
        try:
            _write_all(fd, b" " * _RESERVED)
            os.fsync(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(self._name, flags, 0o600, dir_fd=self._folder)

    def discard(self) -> None:
        """Removes the reserved file. Call this if the runner has not claimed the attempt."""
        os.unlink(self._name, dir_fd=self._folder)

    def publish(self, fields: dict[str, Value]) -> bool:
        """Writes the result atomically. Retries until it succeeds; returns False if the folder is gone."""
        wait_s = 0.05
        while True:
            try:
                self._write(fields)
                os.rename(self._name, "result", src_dir_fd=self._folder, dst_dir_fd=self._folder)
                _sync_quietly(self._folder)
                return True
            except IsADirectoryError:
                self._move_folder_aside()
            except OSError:
                if os.fstat(self._folder).st_nlink == 0:
                    return False
            if not exists(self._folder, self._name):
                try:
                    self._fd = self._open()
                except OSError:
                    pass
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)

    def _move_folder_aside(self) -> None:
        try:
            move_aside("result", self._folder)
        except OSError:
            pass  # retried together with the rename

    def _write(self, fields: dict[str, Value]) -> None:
        text = to_json(fields)
        try:
            self._overwrite(text)
        except OSError:
            # The exit code matters more than names and a long message. Cut them to fit the reserved space.
            message = fields.get("message")
            short = {name: value for name, value in fields.items() if name != "left"}
            text = to_json(short)
            while isinstance(message, str) and message and len(text) > _RESERVED:
                message = message[: len(message) // 2]
                short["message"] = message
                text = to_json(short)
            self._overwrite(text)
        os.fsync(self._fd)

    def _overwrite(self, text: bytes) -> None:
        text = text.ljust(_RESERVED)
        done = 0
        while done < len(text):
            done += os.pwrite(self._fd, text[done:], done)
        os.ftruncate(self._fd, len(text))


def _retry_while_disk_full(folder: int, write: Callable[[], T]) -> T:
    """Calls `write` and returns its result; retries while the disk is full and the attempt is unclaimed."""
    end = time.monotonic() + _DISK_FULL_S
    while True:
        try:
            return write()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or time.monotonic() >= end or exists(folder, "claim"):
                raise
        time.sleep(_DISK_FULL_RETRY_S)


def _sync_quietly(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError:
        pass


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def to_json(fields: Mapping[str, Value]) -> bytes:
    """Returns a JSON object of plain values as one line."""
    parts = []
    for key, value in fields.items():
        if value is None:
            text = "null"
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str):
            text = encode_basestring_ascii(value)
        elif isinstance(value, tuple):
            text = f"[{', '.join(map(encode_basestring_ascii, value))}]"
        else:
            text = repr(value)
        parts.append(f'"{key}": {text}')
    return ("{" + ", ".join(parts) + "}\n").encode("ascii")
