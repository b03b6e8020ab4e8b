"""Where job logs go: a folder that is ours and private, and one new file per attempt."""

from __future__ import annotations

import getpass
import os
import stat
from datetime import datetime
from pathlib import Path

from gpu_scheduler.core.session import log_name

#: The folder of document 004.
DEFAULT = Path("/tmp/gpu_scheduler_logs")


def log_folder(chosen: str | None) -> Path:
    """The folder for job logs: `--log-dir`, else the default, else one named for the user where the default
    is a link or another user's. Raises OSError if it cannot be made or is not ours."""
    if chosen is not None:
        folder = Path(os.path.abspath(chosen))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
    for folder in (DEFAULT, DEFAULT.with_name(f"{DEFAULT.name}_{_user()}")):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        status = os.lstat(folder)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            if status.st_mode & 0o077:
                folder.chmod(0o700)
            return folder
    raise PermissionError(
        f"{DEFAULT} and {folder} belong to somebody else; name another folder with --log-dir"
    )


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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())
