"""Where job logs go: a folder that is ours, never reached through a link, and one new file per attempt."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpu_scheduler.core.session import log_name
from gpu_scheduler.safefile import judge_folder

#: The folder that the older scheduler used.
DEFAULT = Path("/tmp/gpu_scheduler_logs")


@dataclass(frozen=True)
class LogFolder:
    """The places that may be used, the better one first, and the user they belong to.

    One path: the folder of `--log-dir`. Two: the default and the one named for the user. maker: who makes a
    folder that is missing, where that may be another than its first owner.
    """

    paths: tuple[Path, ...]
    owner: int
    maker: int | None = None

    @classmethod
    def of(cls, chosen: str | None) -> LogFolder:
        """What `--log-dir` names, made if missing; it may be a link, or another's, by the user's own word at
        the start, and becomes neither afterwards. Raises OSError."""
        if chosen is None:
            default = Path(os.path.realpath(DEFAULT.parent)) / DEFAULT.name
            return cls((default, default.with_name(f"{default.name}_{user_name()}")), os.geteuid())
        folder = Path(os.path.realpath(chosen))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls((folder,), folder.stat().st_uid, os.geteuid())

    @classmethod
    def from_json(cls, text: str) -> LogFolder:
        """What `to_json` wrote."""
        paths, owner, maker = json.loads(text)
        return cls(tuple(Path(path) for path in paths), owner, maker)

    def to_json(self) -> str:
        """For the record, so that readers look at the same folders."""
        return json.dumps([[str(path) for path in self.paths], self.owner, self.maker])

    def usable(self) -> Path | None:
        """The first place that is ours or free; it may be missing. None: there is none."""
        return next((path for path in self.paths if self.foreign(path) is None), None)

    def foreign(self, path: Path) -> str | None:
        """Why this place must not be used, as a predicate; None if it is ours, or missing."""
        if os.path.realpath(path.parent) != str(path.parent):
            return "is reached through a link"
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"cannot be looked at ({error.strerror})"
        return self._problem(status)

    def make(self) -> Path:
        """The folder to use now, made if missing. Raises OSError."""
        folder = self.usable()
        if folder is None:
            last = self.paths[-1]
            raise PermissionError(errno.EPERM, self.foreign(last) or "is ours again", str(last))
        folder.mkdir(parents=len(self.paths) == 1, exist_ok=True, mode=0o700)
        # What is there now, which nobody else can replace in a folder like /tmp if it is ours.
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            problem = self._problem(status)
            if problem is not None:
                raise PermissionError(errno.EPERM, problem, str(folder))
            if len(self.paths) > 1 and status.st_mode & 0o077:
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
        return folder

    def _problem(self, status: os.stat_result) -> str | None:
        problem = judge_folder(status, (self.owner, self.maker))
        return None if problem is None else problem.says


def new_log(folder: Path, job_id: int, when: datetime) -> Path:
    """Make an empty private log file of a name that nobody has. Raises OSError."""
    name = log_name(job_id, when)
    for suffix in ("", *(f".{n}" for n in range(1, 1000))):
        path = folder / f"{name}{suffix}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        os.close(fd)
        return path
    raise FileExistsError(f"{folder / name} and a thousand others are taken")


def user_name() -> str:
    """Of the user that we run as; the number, where there is no name."""
    import getpass  # readers never come here

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())
