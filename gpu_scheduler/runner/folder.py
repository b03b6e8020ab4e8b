"""Reads and writes the files of an attempt folder for the runner: spec, claim, stop, result.

All names are relative to an open descriptor of the folder. JSON is written by hand, because importing `json`
would delay the runner's start by 13 ms.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

#: The script that makes a Python interpreter a runner.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
#: The environment variable that marks every process of an attempt.
TOKEN = "GPU_SCHEDULER_TOKEN"

#: Answers of the process that forks runners (`forks`); an errno follows REFUSED. That process is started with
#: room for a token in its environment and with room for a command in its arguments, of which the kernel shows
#: at most one page.
READY, FORKED, REFUSED = b"!", b"+", b"-"
NO_TOKEN = "-" * 32
TITLE_BYTES = 4096

#: Errors caused by the limits of the machine: processes, memory, open files.
SHORTAGE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

#: The file in which the command of an attempt records itself, and its size.
COMMAND_FILE = "command.pid"
COMMAND_SIZE = 1024

#: Bytes reserved before the command starts, so that the result fits even if the disk fills up meanwhile.
_RESERVED = 512
#: Seconds for which a runner that finds the disk full before its claim waits for space. The loop launches it
#: again after about the same time.
_DISK_FULL_S = 10.0
_DISK_FULL_RETRY_S = 0.1
#: Largest accepted file in bytes, and largest accepted number of seconds in a file.
_MAX_BYTES = 16 * 1024 * 1024
_MAX_S = 1e12


def open_folder(path: str) -> int:
    """Opens a folder and returns its descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def exists(folder: int, name: str) -> bool:
    """Returns whether the folder has a file of this name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class FileProblem:
    """The reason why a file cannot be used, as a predicate such as "is a folder"."""

    def __init__(self, text: str) -> None:
        self.text = text


def open_file(path: str, folder: int | None = None) -> int | FileProblem | None:
    """Opens a file for reading without blocking; returns None if it does not exist.

    Raises OSError for an error that is not about the file itself.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno == errno.ELOOP:
            return FileProblem("is a symbolic link")
        if error.errno in (errno.ENXIO, errno.ENODEV):
            return FileProblem("is not a regular file")
        if error.errno == errno.EACCES and os.access(os.path.dirname(path) or ".", os.X_OK, dir_fd=folder):
            return FileProblem("is not readable")
        raise


def read_object(fd: int) -> dict[str, Any] | FileProblem:
    """Reads the JSON object in an open file. Raises OSError."""
    status = os.fstat(fd)
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        return FileProblem("is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
    data = b""
    while max(len(data), status.st_size) <= _MAX_BYTES:
        piece = os.read(fd, 1 << 20)
        if not piece:
            value = parse_object(data)
            return FileProblem(f"is incomplete ({len(data)} bytes)") if value is None else value
        data += piece
    return FileProblem(f"is larger than {_MAX_BYTES >> 20} MiB")


def try_load(folder: int, name: str) -> dict[str, Any] | FileProblem | None:
    """Reads the JSON object in a file of the folder; returns None if there is none or reading fails."""
    try:
        return load(folder, name)
    except OSError:
        return None


def load(folder: int, name: str) -> dict[str, Any] | FileProblem | None:
    """Reads the JSON object in a file of the folder; returns None if there is none. Raises OSError."""
    fd = open_file(name, folder)
    if not isinstance(fd, int):
        return fd
    try:
        return read_object(fd)
    finally:
        os.close(fd)


def invalid_field(value: dict[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> FileProblem | None:
    """Returns the first of these fields that is missing or has an invalid value, as a problem; else None."""
    for name, is_right in fields.items():
        if name not in value or not is_right(value[name]):
            return FileProblem(f"has no valid {name!r}")
    return None


def is_text(value: object) -> bool:
    """Returns whether a value is a string."""
    return isinstance(value, str)


def is_optional_text(value: object) -> bool:
    """Returns whether a value is a string or null."""
    return value is None or isinstance(value, str)


def is_seconds(value: object) -> bool:
    """Returns whether a value is a usable number of seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_S


#: The fields of `stop` and `withdrawn`, and those of `spec.json`. An unknown cause counts as a cancel.
STOP_FIELDS = {"cause": is_text, "grace_s": is_seconds, "follow": lambda value: value in ("kill", "withdraw")}
SPEC_FIELDS = {
    "token": lambda value: isinstance(value, str) and value.isascii(),
    "boot_id": is_text,
    "cwd": is_text,
    "umask": lambda value: type(value) is int and 0 <= value <= 0o777,
    "env": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    "terminal": lambda value: isinstance(value, bool),
    "session": is_optional_text,
    "log": is_text,
    "header": is_text,
    "timeout_s": lambda value: value is None or is_seconds(value),
    "term_grace_s": is_seconds,
}


def read_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the spec of an attempt folder. Raises OSError if there is no usable one."""
    folder = open_folder(os.fspath(path))
    try:
        spec = load(folder, "spec.json")
    finally:
        os.close(folder)
    if spec is None:
        raise FileNotFoundError(f"no spec.json in {os.fspath(path)}")
    problem = spec if isinstance(spec, FileProblem) else invalid_field(spec, SPEC_FIELDS)
    if problem is not None or isinstance(spec, FileProblem):
        raise OSError(errno.EINVAL, f"spec.json {problem and problem.text}", os.fspath(path))
    return spec


def move_aside(path: str, folder: int | None = None) -> None:
    """Renames a folder that is in the way of a file to be written. Raises OSError."""
    for number in range(1, 1000):
        try:
            os.rename(path, f"{path}.aside-{number}", src_dir_fd=folder, dst_dir_fd=folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


class _ScannerSettings:
    """The settings that the C scanner of `json` reads."""

    def __init__(self) -> None:
        self.strict = False
        self.object_hook = self.object_pairs_hook = self.array_hook = None
        self.parse_float = float
        self.parse_int = int
        self.memo: dict[str, str] = {}

    def parse_constant(self, name: str) -> None:
        """Rejects NaN and Infinity."""
        raise ValueError(name)


_settings: Any = _ScannerSettings()
_scan = make_scanner(_settings)


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Parses the JSON object in `data`; returns None if it is not one."""
    try:
        text = data.decode("utf-8").strip()
        value, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and end == len(text) else None


def to_json(fields: Mapping[str, str | int | float | list[int] | None]) -> bytes:
    """Returns a JSON object of plain values as one line."""
    parts = []
    for key, value in fields.items():
        if value is None:
            text = "null"
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str):
            text = encode_basestring_ascii(value)
        else:
            text = repr(value)
        parts.append(f'"{key}": {text}')
    return ("{" + ", ".join(parts) + "}\n").encode("ascii")


def boot_id() -> str:
    """Returns the kernel's id of the current boot."""
    fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode("ascii").strip()
    finally:
        os.close(fd)


def start_ticks() -> int:
    """Returns the start of this process in kernel ticks since boot."""
    fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(fd)


def claim(folder: int, identity: Mapping[str, str | int | None]) -> int | None:
    """Claims the attempt; returns the descriptor that holds the lock, or None if it is already claimed.

    Keep the descriptor open and never open the file again: closing any descriptor of it releases the lock.
    Raises OSError if the folder cannot be written.
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
    """Opens the file in which the command records its pid, start and session; returns None on failure.

    The descriptor is positioned where the command writes. The first line identifies the boot and the pid
    namespace, because pid 1 of a restarted container is another process. The space is reserved before the
    command starts, so that a full disk cannot truncate the entry.
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


def init_ticks() -> str:
    """Returns the start of process 1 in kernel ticks, also in a container; "-" if it is not readable."""
    try:
        fd = os.open("/proc/1/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096).rpartition(b")")[2].split()[19].decode("ascii")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return "-"


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
        """Removes the reserved file, when another runner has the attempt."""
        os.unlink(self._name, dir_fd=self._folder)

    def publish(self, fields: dict[str, str | int | float | list[int] | None]) -> bool:
        """Writes the result atomically and retries until it succeeds; returns False if the folder is gone."""
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

    def _write(self, fields: dict[str, str | int | float | list[int] | None]) -> None:
        text = to_json(fields)
        try:
            self._overwrite(text)
        except OSError:
            # The exit code matters more than a long message: cut it to what fits the reserved space.
            message = fields.get("message")
            short = dict(fields)
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
    """Returns what `write` returns; retries while the disk is full and the attempt is unclaimed."""
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
