"""Reads and writes the files of an attempt folder, and reads those of processes in /proc.

The `folder` argument of a function is an open descriptor of the folder. File names are relative to it.

The runner does not use `json`, because importing it would delay the start of a runner by 13 ms.
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
    #: A value in a file. A tuple contains texts.
    Value = str | int | float | list[int] | tuple[str, ...] | None

#: The script that a Python interpreter runs to become a runner.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
#: The environment variable that marks every process of an attempt.
TOKEN = "GPU_SCHEDULER_TOKEN"
#: A mark is a number whose hexadecimal digits are _MARK and the first digits of the token.
_MARK, MARKED_DIGITS = "2", 15
#: The errno values that report a shortage of processes, memory or open files.
SHORTAGE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
#: The name and size of the file in which the command of an attempt records itself.
COMMAND_FILE = "command.pid"
COMMAND_SIZE = 1024
#: The size of the largest accepted file, in bytes.
_MAX_BYTES = 16 * 1024 * 1024
#: Bytes reserved before the command starts, so that the result can be written even if the disk fills up
#: later.
_RESERVED = 512
#: Seconds for which a runner waits for space if the disk is full before it has claimed its attempt. After
#: about the same time, the loop launches the attempt again.
_DISK_FULL_S = 10.0
_DISK_FULL_RETRY_S = 0.1


def open_folder(path: str) -> int:
    """Opens a folder and returns its descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def scaled(seconds: float) -> float:
    """Returns a time of an engine's attempt in seconds, which tests shorten with GPU_SCHEDULER_TIME_SCALE."""
    return seconds / float(os.environ.get("GPU_SCHEDULER_TIME_SCALE", "1"))


def write_traceback(path: str) -> None:
    """Appends the traceback of the current exception to the file `runner.err` in the folder `path`."""
    import traceback

    try:
        with open(os.path.join(path, "runner.err"), "a") as file:
            traceback.print_exc(file=file)
    except OSError:
        pass


def exists(folder: int, name: str) -> bool:
    """Returns whether the folder has a file with this name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class UnusableFile:
    """The reason why a file cannot be used, as a predicate such as "is a folder"."""

    def __init__(self, text: str) -> None:
        self.text = text


def open_file(path: str, folder: int | None = None) -> int | UnusableFile | None:
    """Opens a file for reading without blocking; returns None if it does not exist.

    Raises OSError for an error that is not caused by the file itself.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno == errno.ELOOP:
            return UnusableFile("is a symbolic link")
        if error.errno in (errno.ENXIO, errno.ENODEV):
            return UnusableFile("is not a regular file")
        if error.errno == errno.EACCES and os.access(os.path.dirname(path) or ".", os.X_OK, dir_fd=folder):
            return UnusableFile("is not readable")
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
        """Rejects the constants NaN and Infinity."""
        raise ValueError(name)


_settings: Any = _ScannerSettings()
_scan = make_scanner(_settings)


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Parses a JSON object; returns None if `data` is anything else."""
    try:
        text = data.decode("utf-8").strip()
        value, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and end == len(text) else None


def read_object(fd: int) -> dict[str, Any] | UnusableFile:
    """Reads a JSON object from an open file. Raises OSError."""
    status = os.fstat(fd)
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        return UnusableFile("is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
    data = b""
    while max(len(data), status.st_size) <= _MAX_BYTES:
        piece = os.read(fd, 1 << 20)
        if not piece:
            value = parse_object(data)
            return UnusableFile(f"is incomplete ({len(data)} bytes)") if value is None else value
        data += piece
    return UnusableFile(f"is larger than {_MAX_BYTES >> 20} MiB")


def try_load(folder: int, name: str) -> dict[str, Any] | UnusableFile | None:
    """Reads a JSON object from a file in the folder; returns None if the file is missing or unreadable."""
    try:
        return load(folder, name)
    except OSError:
        return None


def load(folder: int, name: str) -> dict[str, Any] | UnusableFile | None:
    """Reads a JSON object from a file in the folder; returns None if the file is missing. Raises OSError."""
    fd = open_file(name, folder)
    if not isinstance(fd, int):
        return fd
    try:
        return read_object(fd)
    finally:
        os.close(fd)


def forget_missing(folder: int) -> None:
    """Makes an NFS client ask the server again for names that it remembers as missing in the folder.

    A client trusts such a memory for up to a minute, unless it sees that the folder has changed. So this
    function changes it.
    """
    name = f".look.{os.urandom(8).hex()}"
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder))
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # the next look tries again


def move_aside(path: str, folder: int | None = None) -> None:
    """Renames a folder that is in the place where a file is to be written. Raises OSError."""
    for number in range(1, 1000):
        try:
            os.rename(path, f"{path}.aside-{number}", src_dir_fd=folder, dst_dir_fd=folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def close_inherited(keep: tuple[int, ...] = (0, 1, 2)) -> None:
    """Closes all descriptors except `keep`, so that a job inherits none of the parent's open files."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # this descriptor was open only while the folder was listed


def boot_id() -> str:
    """Returns the kernel's id for the current boot."""
    fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode("ascii").strip()
    finally:
        os.close(fd)


def set_mark(token: str | None) -> None:
    """Marks this process and its future descendants as an attempt's, with a limit too high to limit anything.

    token: None removes the mark. Does nothing if the hard limit is lower than the mark.
    """
    import resource  # delays the runner by 0.2 ms, and the fork server has loaded it

    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    try:
        mark = hard if token is None else int(_MARK + token[:MARKED_DIGITS], 16)
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
    except (OSError, ValueError):
        pass


def mark_of(pid: int) -> str | None:
    """Returns the first digits of the token with which a process is marked; None if it has no mark."""
    import resource

    try:
        limit = resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except PermissionError:  # it runs with another group; anybody may read the file, which takes longer
        words = try_read_proc(pid, "limits").partition(b"Max realtime timeout")[2].split(None, 1)
        limit = int(words[0]) if words and words[0].isdigit() else 0
    except OSError:
        return None
    digits = f"{limit:x}"
    return digits[1:] if len(digits) == 1 + MARKED_DIGITS and digits.startswith(_MARK) else None


def read_proc(pid: int | str, name: str) -> bytes:
    """Reads a file of a process in /proc. pid: the pid or "self". Raises OSError."""
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 17), b""))
    finally:
        os.close(fd)


def stat_fields(text: bytes) -> list[bytes]:
    """Splits the text of /proc/PID/stat into fields; the first field is the state of the process.

    Skips the pid and the program name, because the name may contain blanks and parentheses.
    """
    return text.rpartition(b")")[2].split()


def try_read_proc(pid: int | str, name: str) -> bytes:
    """Reads a file of a process in /proc; returns b"" if the process is gone or we may not read the file.

    Raises OSError for a shortage of open files or memory.
    """
    try:
        return read_proc(pid, name)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return b""


def fields_of(pid: int | str) -> list[bytes] | None:
    """Returns the fields of /proc/PID/stat as `stat_fields` does; None if the process is gone.

    Also returns the fields of a zombie. Raises OSError for a shortage of open files or memory.
    """
    return stat_fields(try_read_proc(pid, "stat")) or None


def living_fields(pid: int) -> list[bytes] | None:
    """Returns the fields as `fields_of` does; None if the process is gone or a zombie."""
    fields = fields_of(pid)
    return None if fields is None or has_ended(fields) else fields


def has_ended(fields: list[bytes]) -> bool:
    """Returns whether the process with these fields is a zombie."""
    # If only the first thread has ended, the kernel shows the process as a zombie although it is alive.
    return fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1


def is_alive(pid: int, ticks: int) -> bool:
    """Returns whether the process with this pid and start time is alive; True in a shortage of open files."""
    try:
        fields = living_fields(pid)
    except OSError:
        return True
    return fields is not None and int(fields[19]) == ticks


def start_ticks() -> int:
    """Returns the start time of this process in kernel ticks since boot. Raises OSError."""
    return int(stat_fields(read_proc("self", "stat"))[19])


def init_ticks() -> str:
    """Returns the start time of process 1 in kernel ticks since boot; "-" if it cannot be read.

    In a container, this is the container's process 1.
    """
    fields = fields_of(1)
    return "-" if fields is None else fields[19].decode("ascii")


def claim(folder: int, identity: Mapping[str, str | int | None]) -> int | None:
    """Claims the attempt; returns the descriptor that holds the lock, or None if it is already claimed.

    Keep the descriptor open and never open the file again, because closing any descriptor of the file
    releases the lock. Raises OSError if the file cannot be written.

    identity: with a `nonce`, the folder may be on a network file system; see `_claim_shared`.
    """
    claim_once = _claim_shared if "nonce" in identity else _claim
    return _retry_while_disk_full(folder, lambda: claim_once(folder, identity))


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


def _claim_shared(folder: int, identity: Mapping[str, str | int | None]) -> int | None:
    """Claims the attempt on a network file system, where `link` may report a failure although it succeeded.

    So the nonce in `claim` decides. Other machines read the file, so it must be on the server before it gets
    its name. They cannot see the lock, which is for the observers on this machine. The name of the file to be
    linked contains the nonce, because a runner on another machine may have the same pid.
    """
    name = f".claim.{identity['nonce']}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        _write_all(fd, to_json(identity))
        os.fsync(fd)
        failure = None
        try:
            os.link(name, "claim", src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            failure = error
        claim = load(folder, "claim")
        if claim is None:
            raise failure or FileNotFoundError(errno.ENOENT, "the claim has disappeared")
        if not isinstance(claim, dict) or claim.get("nonce") != identity["nonce"]:
            return None
    finally:
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # this may fail after success too
    try:
        # Locked only now, because the end of the reading would have released the lock.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass  # ENOLCK or EOPNOTSUPP, for example, where the server keeps no locks
    return fd


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
    """Writes the file `result`, for which it reserves space before the command starts.

    owner: distinguishes the runner from all others that may work in the folder; "" if its pid does.
    """

    def __init__(self, folder: int, owner: str = "") -> None:
        self._folder = folder
        self._name = f".result.{owner or os.getpid()}"
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
                if self._is_published():
                    return True
                if self._folder_is_gone():
                    return False
            try:
                if not exists(self._folder, self._name):
                    self._fd = self._open()
            except OSError:
                pass
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)

    def _is_published(self) -> bool:
        """Returns whether `result` has been written. On NFS, a rename may report a failure after success."""
        try:
            os.lseek(self._fd, 0, os.SEEK_SET)
            written = read_object(self._fd)
            return isinstance(written, dict) and written == load(self._folder, "result")
        except OSError:
            return False

    def _folder_is_gone(self) -> bool:
        try:
            return os.fstat(self._folder).st_nlink == 0
        except OSError as error:
            return error.errno == errno.ESTALE

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


#: Largest accepted number of seconds.
_MAX_S = 1e12


def invalid_field(value: dict[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> UnusableFile | None:
    """Returns a problem for the first of these fields that is missing or invalid; None if all are valid."""
    for name, is_right in fields.items():
        if name not in value or not is_right(value[name]):
            return UnusableFile(f"has no valid {name!r}")
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


def within(first: int, last: int) -> Callable[[object], bool]:
    """Returns a check for an integer from `first` to `last`."""
    return lambda value: type(value) is int and first <= value <= last


def or_null(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a check that also accepts null."""
    return lambda value: value is None or is_right(value)


def is_bool(value: object) -> bool:
    """Returns whether a value is true or false."""
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_gpu_claim(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    name, mib, total_mib = value.get("name"), value.get("mib"), value.get("total_mib")
    return (
        isinstance(name, str)
        and not {"/", "\0"} & set(name)
        and (mib is None or (_is_count(mib) and total_mib is not None))
        and (total_mib is None or _is_count(total_mib))
    )


def _are_gpu_claims(value: Any) -> bool:
    """Returns whether a value is a folder with claims on different GPUs."""
    if not isinstance(value, dict) or not isinstance(value.get("gpus"), list):
        return False
    gpus = value["gpus"]
    # Two claims of one process on one GPU would release each other.
    return (
        isinstance(value.get("folder"), str)
        and "\0" not in value["folder"]
        and all(map(_is_gpu_claim, gpus))
        and len({one["name"] for one in gpus}) == len(gpus)
    )


def _is_watched_process(value: Any) -> bool:
    """Returns whether a value describes the process that a runner watches instead of starting one."""
    return isinstance(value, dict) and invalid_field(value, _WATCH_FIELDS) is None


_WATCH_FIELDS = {
    "pid": lambda value: _is_count(value) and value > 1,
    "start_ticks": _is_count,
    "boot_id": is_text,
    "started_at": is_seconds,
}
#: The fields of `stop` and `withdrawn`, each with its check. An unknown cause counts as a cancel, and an
#: unknown signal as SIGTERM.
STOP_FIELDS = {
    "cause": is_text,
    "grace_s": is_seconds,
    "follow": lambda value: value in ("kill", "withdraw"),
    "id": is_text,
    "signal": is_text,
}
#: The fields that an earlier version does not write, with what it meant.
OLDER_STOP = {"id": "", "signal": "TERM"}
#: The fields of `spec.json`, each with its check.
_SPEC_FIELDS = {
    "token": lambda value: isinstance(value, str) and value.isascii(),
    "boot_id": is_text,
    "cwd": is_text,
    "umask": within(0, 0o777),
    "env": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    "terminal": is_bool,
    "session": is_optional_text,
    "log": is_optional_text,
    "header": is_text,
    "timeout_s": or_null(is_seconds),
    "term_grace_s": is_seconds,
    "gpu_claims": or_null(_are_gpu_claims),
    "watch": or_null(_is_watched_process),
    "leftover_wait_s": is_seconds,
    "background": lambda value: value in (None, "wait", "ignore"),
    "ends_in_pipe": is_bool,
    "ignore_hangup": is_bool,
    "log_limit": or_null(_is_count),
    "engine": is_optional_text,
}
#: The fields that an earlier version does not write, with what it meant.
_OLDER_SPEC = {
    "gpu_claims": None, "watch": None, "leftover_wait_s": 0.0, "background": None, "ends_in_pipe": False,
    "ignore_hangup": False, "log_limit": None, "engine": None,
}  # fmt: skip


def checked_spec(spec: dict[str, Any]) -> dict[str, Any] | UnusableFile:
    """Returns a spec with the fields that an earlier version does not write, or its first problem."""
    whole = {**_OLDER_SPEC, **spec}
    return invalid_field(whole, _SPEC_FIELDS) or whole


def load_spec(folder: int) -> dict[str, Any] | UnusableFile | None:
    """Reads the spec in an open attempt folder; returns None if it is missing. Raises OSError."""
    spec = load(folder, "spec.json")
    return checked_spec(spec) if isinstance(spec, dict) else spec


def read_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the spec in an attempt folder. Raises OSError if it is missing or not usable."""
    folder = open_folder(os.fspath(path))
    try:
        spec = load_spec(folder)
    finally:
        os.close(folder)
    if spec is None:
        raise FileNotFoundError(f"spec.json is missing in {os.fspath(path)}")
    if isinstance(spec, UnusableFile):
        raise OSError(errno.EINVAL, f"spec.json {spec.text}", os.fspath(path))
    return spec
