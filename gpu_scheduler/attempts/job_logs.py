"""The logs of jobs: the folder that holds them, and their ends."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.core.model.job import Attempt
from gpu_scheduler.runner.folder import SHORTAGE, fields_of
from gpu_scheduler.system.procfs import output_file
from gpu_scheduler.system.safe_file import check_folder_status

# Manages the folder of job logs, which must belong to us and must not be reached through a link.
#
# Each attempt gets a new file in it.


#: The default log folder, the same as the older scheduler's.
DEFAULT_FOLDER = Path("/tmp/gpu_scheduler_logs")


class LogFolder(Struct, frozen=True):
    """The candidate folders for job logs, in order of preference, and the uid that must own them.

    paths: either one path, the folder of `--log-dir`, or two: the default folder and a folder named after the
    user. creator: the uid that creates a missing folder; it may differ from the owner of an existing folder.
    """

    paths: tuple[Path, ...]
    owner: int
    creator: int | None = None

    @classmethod
    def from_option(cls, log_dir: str | None) -> LogFolder:
        """Returns the log folder for the value of `--log-dir` and creates it if missing. Raises OSError.

        The folder that a user gives may be a link or belong to another user when the scheduler starts. After
        that it must stay the same folder.
        """
        if log_dir is None:
            default = Path(os.path.realpath(DEFAULT_FOLDER.parent)) / DEFAULT_FOLDER.name
            return cls((default, default.with_name(f"{default.name}_{user_name()}")), os.geteuid())
        folder = Path(os.path.realpath(log_dir))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls((folder,), folder.stat().st_uid, os.geteuid())

    @classmethod
    def from_json(cls, text: str) -> LogFolder:
        """Returns the log folder that `to_json` described."""
        paths, owner, maker = json.loads(text)
        return cls(tuple(Path(path) for path in paths), owner, maker)

    def to_json(self) -> str:
        """Returns a JSON text for the store, so that front ends can find the same folders."""
        return json.dumps([[str(path) for path in self.paths], self.owner, self.creator])

    def usable_path(self) -> Path | None:
        """Returns the first path that is missing or our own; None if no path can be used."""
        return next((path for path in self.paths if self.problem_with(path) is None), None)

    def problem_with(self, path: Path) -> str | None:
        """Returns why the path must not be used, as a predicate; None if it is missing or our own."""
        if os.path.realpath(path.parent) != str(path.parent):
            return "is reached through a link"
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"cannot be accessed ({error.strerror})"
        return self._ownership_problem(status)

    def create(self) -> Path:
        """Returns the folder to use now and creates it if missing. Raises OSError."""
        folder = self.usable_path()
        if folder is None:
            last = self.paths[-1]
            raise PermissionError(
                errno.EPERM, self.problem_with(last) or "was not usable a moment ago", str(last)
            )
        folder.mkdir(parents=len(self.paths) == 1, exist_ok=True, mode=0o700)
        # In a sticky folder such as /tmp, nobody else can replace a folder that we own. It is therefore
        # enough to check the open descriptor.
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            problem = self._ownership_problem(status)
            if problem is not None:
                raise PermissionError(errno.EPERM, problem, str(folder))
            if len(self.paths) > 1 and status.st_mode & 0o077:
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
        return folder

    def _ownership_problem(self, status: os.stat_result) -> str | None:
        problem = check_folder_status(status, (self.owner, self.creator))
        return None if problem is None else problem.description


def create_log(folder: Path, job_id: int, started_at: datetime) -> Path:
    """Creates an empty private log file, `job_<job_id>_<timestamp>.log`. Raises OSError."""
    name = f"job_{job_id}_{started_at:%Y%m%d_%H%M%S_%f}.log"
    for number in range(1000):
        path = folder / (f"{name}.{number}" if number else name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        os.close(fd)
        return path
    raise FileExistsError(f"{folder / name} already exists, and so do the names with .1 to .999 appended")


def user_name() -> str:
    """Returns the name of the user that we run as; the uid if the user has no name."""
    import getpass  # imported here, because a global import would slow down the start of front ends

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


# Finds the log of a job and reads its end.


#: Number of bytes to read from the end of a log in order to find its last error.
TAIL_BYTES = 64 * 1024
#: A cut first line is dropped, unless it is longer than this many bytes. If it is longer, its last bytes up
#: to this number are kept.
_LONG_LINE_BYTES = 4 * 1024


def current_log(attempt: Attempt) -> str | None:
    """Returns the path of an attempt's log. That of an adopted process may have been renamed or deleted."""
    if attempt.log is None or attempt.watched_pid is None or attempt.watched_ticks is None:
        return attempt.log
    return log_of_process(attempt.watched_pid, attempt.watched_ticks, attempt.log)


def log_of_process(pid: int, ticks: int, log: str | None) -> str | None:
    """Returns the path of the log of an adopted process; `log`, its first path, if it has ended.

    ticks: the start of the process in kernel ticks since boot.
    """
    fields = None if log is None else fields_of(pid)
    return log if fields is None or int(fields[19]) != ticks else output_file(pid) or log


@contextmanager
def regular_file(path: str, *, follow: bool = False) -> Iterator[tuple[int, os.stat_result]]:
    """Opens a regular file for reading; gives its descriptor and its status. Raises OSError.

    Never waits for the other end of a FIFO. follow: whether the last part of the path may be a link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        yield fd, status
    finally:
        os.close(fd)


def read_tail(path: str | None, max_bytes: int = TAIL_BYTES) -> str:
    """Returns the last `max_bytes` bytes of a log as text, starting at a line; "" if the log cannot be read.

    If the first line is cut and long, as a progress bar is, the text starts with its last 4 KiB. Reads
    only regular files and follows no links, because other users may write to the folder. Raises OSError for a
    shortage of processes, memory or open files.
    """
    if path is None:
        return ""
    try:
        with regular_file(path) as (fd, status):
            start = max(0, status.st_size - max_bytes)
            data = os.pread(fd, max_bytes, start)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return ""
    if start:
        cut, end, rest = data.partition(b"\n")
        data = cut[-_LONG_LINE_BYTES:] + end + rest if len(cut) > _LONG_LINE_BYTES or not rest else rest
    return data.decode("utf-8", "replace")
