"""Writes files atomically: writes a new file in the same folder, then renames it.

Some files need more than this and are written elsewhere: a runner's files (`runner/publish.py`, which
reserves space for them), the state file (exchanged with the old one, in order to notice an edit), and backups
(written by SQLite).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def replace_file(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Writes a file of mode 0600 with this data; replaces an existing file or link.

    synced: write the data to the disk before the rename. Raises OSError and then leaves the path unchanged.
    """
    # The name is random instead of containing a pid, because hosts that share the folder may have the same
    # pids.
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    create_file(fresh, data, synced=synced)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def create_file(
    path: Path, data: bytes, *, synced: bool = False, mode: int = 0o600, like: os.stat_result | None = None
) -> None:
    """Creates a file. Removes it again if it cannot be written completely.

    synced: write the data to the disk before returning. like: the status of a file whose mode and owner the
    new file gets. Raises OSError; this is FileExistsError if the path already exists.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode if like is None else 0o600)
    try:
        with open(fd, "wb") as file:
            if like is not None:
                made = os.fstat(fd)
                if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            if synced:
                os.fsync(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
