"""Recognises a store that was moved or copied, before the scheduler signals a process that the store names.

The store records a random id, and the real path and the inode of its data directory. A file in that directory
contains the same id.
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Literal, NamedTuple

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store

# Decides whether a data directory is the recorded one, was moved, or is a copy. Accesses no files.
#
# A copy must not be mistaken for its original, whose processes carry the same tokens.


#: "same": the recorded folder, perhaps under another name. "moved": the recorded folder is no longer at its
#: old path. "copied": the original is still at the old path.
FolderRelation = Literal["same", "moved", "copied"]


class RecordedFolder(NamedTuple):
    """The data directory as recorded in the store: its random id, its real path and its inode.

    The device number is not recorded, because a reboot can change it.
    """

    id: str
    path: str
    inode: int


class ObservedFolder(NamedTuple):
    """The current state of a folder. id: the content of its id file; None if missing or unreadable."""

    path: str
    device: int
    inode: int
    id: str | None


class UnreadableFolder:
    """Stands for something at the recorded path that cannot be read."""


def compare_folders(
    recorded: RecordedFolder | None,
    current: ObservedFolder,
    at_recorded_path: ObservedFolder | UnreadableFolder | None,
) -> FolderRelation:
    """Compares the folder `current` with the recorded one.

    at_recorded_path: the folder that is now at the recorded path; None if nothing is there.

    The inode alone is not conclusive: a restore changes it, and the same number can occur on two file
    systems. Therefore, the folder that is now at the recorded path counts too.
    """
    if recorded is None or current.path == recorded.path:
        return "same"
    if isinstance(at_recorded_path, ObservedFolder) and (at_recorded_path.device, at_recorded_path.inode) == (
        current.device,
        current.inode,
    ):
        return "same"
    if at_recorded_path is None or (
        isinstance(at_recorded_path, ObservedFolder) and at_recorded_path.id not in (recorded.id, None)
    ):
        return "same" if current.inode == recorded.inode else "moved"
    if current.inode != recorded.inode:
        return "copied"
    # The folder was renamed and a copy was put at its old path, unless the inodes are equal by chance.
    return (
        "same"
        if isinstance(at_recorded_path, ObservedFolder) and at_recorded_path.inode != recorded.inode
        else "copied"
    )


_META_KEY = "folder"
_ID_FILE = "id"
#: Maximum number of bytes to read from the id file; ids are shorter.
_MAX_ID_BYTES = 256


def recorded_location(store: Store) -> RecordedFolder | None:
    """Returns the recorded folder of the store, or None if the store is new or from an earlier version."""
    value = store.db.meta(_META_KEY)
    return None if value is None else RecordedFolder(**json.loads(value))


def location_verdict(store: Store) -> FolderRelation:
    """Returns whether the store is in its recorded folder, was moved, or is a copy."""
    known = recorded_location(store)
    if known is None:
        return "same"
    here = _location(store.data_dir.folder)
    return compare_folders(known, here, here if here.path == known.path else _location_at(known.path))


def original_of_copy(store: Store) -> str | None:
    """Returns the original's folder if this store is a copy whose original still exists, otherwise None."""
    known = recorded_location(store)
    return known.path if known is not None and location_verdict(store) == "copied" else None


def refuse_copy(store: Store) -> None:
    """Raises SchedulerError, with the remedies, if the store is a copy and its original still exists."""
    of = original_of_copy(store)
    if of is not None:
        raise SchedulerError(_copy_refusal(store, of))


def refuse_hard_link(store: Store) -> None:
    """Raises SchedulerError if the databases of a copy and its original are hard links to one file."""
    known = recorded_location(store)
    original = os.path.join(known.path, store.data_dir.database.name) if known is not None else ""
    if is_same_file(store.data_dir.database, original):
        raise SchedulerError(
            f"{store.data_dir.database} and {original} are the same file (a hard link), so a write to"
            " one would change the other\n"
            "remove this copy and make one without links, with `cp -r`"
        )


def adopt_folder(store: Store, *, new_id: bool = False) -> None:
    """Records the current folder of the store, in the caller's transaction if there is one.

    new_id: give the store a new id, because it is a copy. Only the scheduler that holds the locks may call
    this function. Raises SchedulerError if the folder cannot be read or written.
    """
    # Only `start` writes and logs; other commands import this module too.
    import logging

    from gpu_scheduler.system.safe_file import replace_file

    before = recorded_location(store)
    if before is not None and not new_id and location_verdict(store) == "moved":
        logging.getLogger(__name__).warning(
            "this store was moved here from %s, which no longer exists", before.path
        )
    _relocate_project(store, copied=new_id)
    try:
        here = _location(store.data_dir.folder)
        known = before if before is not None and not new_id else RecordedFolder(os.urandom(16).hex(), "", 0)
        known = known._replace(path=here.path, inode=here.inode)
        if here.id != known.id:
            replace_file(store.data_dir.folder / _ID_FILE, f"{known.id}\n".encode("ascii"), synced=True)
    except OSError as error:
        raise SchedulerError(f"{error.filename or store.data_dir.folder}: {error.strerror}") from None
    if known != before:
        store.db.set_meta(_META_KEY, json.dumps(known._asdict()))


def assume_folder(store: Store, path: str) -> None:
    """Records this path as the store's folder, with the current folder's id, in the caller's transaction.

    Use this for a store that was restored from attempt folders, which contain only the path.
    """
    known = RecordedFolder(_read_id(store.data_dir.folder / _ID_FILE) or os.urandom(16).hex(), path, 0)
    store.db.set_meta(_META_KEY, json.dumps(known._asdict()))


def owner_elsewhere(db: sqlite3.Connection, data_dir: DataDir) -> str | None:
    """Returns the folder recorded in a database if its id differs from this folder's id, otherwise None."""
    here = _read_id(data_dir.folder / _ID_FILE)
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_META_KEY,)).fetchone()
    known = None if row is None else RecordedFolder(**json.loads(row[0]))
    return None if known is None or here in (None, known.id) else known.path


def _relocate_project(store: Store, *, copied: bool) -> None:
    """Updates the paths in the store if the project folder is now at another path."""
    data_dir, known = store.data_dir, recorded_location(store)
    if known is None or data_dir.folder.parent != data_dir.state_file.parent:
        return
    old, new = os.path.dirname(known.path), os.path.dirname(os.path.realpath(data_dir.folder))
    if old != new:
        import logging

        from gpu_scheduler.store.relocate import Relocation, relocate

        log = logging.getLogger(__name__)
        text = "the paths of jobs files, working directories, scripts and logs in %s now refer to %s"
        log.info(text, old, new)
        relocate(store, Relocation(old, new, copied=copied))


def is_same_file(one: str | Path, other: str) -> bool:
    """Returns whether both paths exist and lead to the same file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _copy_refusal(store: Store, original: str) -> str:
    return (
        f"{store.data_dir.folder} is a copy of {original}, which still exists; the original's jobs must not"
        " be ended or run again from here\n"
        "`start --as-copy` continues with the copy, holds the jobs that had started but not ended, and"
        " signals no process; `start --fresh` forgets all jobs in the copy"
    )


def _location(folder: Path) -> ObservedFolder:
    status = os.stat(folder)
    return ObservedFolder(os.path.realpath(folder), status.st_dev, status.st_ino, _read_id(folder / _ID_FILE))


def _location_at(path: str) -> ObservedFolder | UnreadableFolder | None:
    try:
        if not os.path.lexists(os.path.join(path, "scheduler.db")):
            os.stat(path)  # a folder that cannot be entered hides its content
            return None if os.access(path, os.X_OK) else UnreadableFolder()
        return _location(Path(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UnreadableFolder()


def _read_id(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _MAX_ID_BYTES).decode("ascii", "replace").strip() or None
    except OSError:
        return None
    finally:
        os.close(fd)
