"""Recognises a store that was moved or copied, before the scheduler signals any process that it names.

The store keeps a random id, which is also in a file of its data directory, and that directory's real path and
inode.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

from gpu_scheduler.core.recordfolder import Place, Recorded, Unknown, Verdict, judge
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

_KEY = "folder"
_FILE = "id"
#: More than the length of an id.
_ID_BYTES = 256


def recorded(store: Store) -> Recorded | None:
    """Returns the recorded folder of the store; None if it is new or of an earlier version."""
    value = store.db.meta(_KEY)
    return None if value is None else Recorded(**json.loads(value))


def verdict(store: Store) -> Verdict:
    """Returns whether the store is in its recorded folder, was moved, or is a copy."""
    known = recorded(store)
    if known is None:
        return "same"
    here = _place(store.home.folder)
    return judge(known, here, here if here.path == known.path else _old_place(known.path))


def original(store: Store) -> str | None:
    """Returns the folder of the store of which this one is a copy, if that still exists; None: no copy."""
    known = recorded(store)
    return known.path if known is not None and verdict(store) == "copied" else None


def refuse_copy(store: Store) -> None:
    """Raises SchedulerError, with the remedies, if the store is a copy and its original still exists."""
    of = original(store)
    if of is not None:
        raise SchedulerError(_refusal(store, of))


def refuse_links(store: Store) -> None:
    """Raises SchedulerError if a hard link makes the databases of a copy and its original one file."""
    known = recorded(store)
    original = os.path.join(known.path, store.home.database.name) if known is not None else ""
    if _is_same_file(store.home.database, original):
        raise SchedulerError(
            f"{store.home.database} and {original} are the same file (a hard link): a write to one"
            " would change the other\n"
            "remove this copy and make one without links, with `cp -r`"
        )


def settle_in(store: Store, *, new: bool = False) -> None:
    """Records the present folder of the store, in the caller's transaction if there is one.

    new_id: give the store a new id, since it is a copy. Only the scheduler that holds the locks may call it.
    Raises SchedulerError.
    """
    before = recorded(store)
    if before is not None and not new and verdict(store) == "moved":
        log.warning("this store was moved here from %s, which no longer exists", before.path)
    _take_along(store, copied=new)
    try:
        here = _place(store.home.folder)
        known = before if before is not None and not new else Recorded(os.urandom(16).hex(), "", 0)
        known = replace(known, path=here.path, inode=here.inode)
        if here.id != known.id:
            _write(store.home.folder / _FILE, known.id)
    except OSError as error:
        raise SchedulerError(f"{error.filename or store.home.folder}: {error.strerror}") from None
    if known != before:
        store.db.set_meta(_KEY, json.dumps(asdict(known)))


def assume(store: Store, path: str) -> None:
    """Records a folder by its path and the id file found here, in the caller's transaction.

    For a store that was restored from attempt folders, which contain no more than that.
    """
    known = Recorded(_read(store.home.folder / _FILE) or os.urandom(16).hex(), path, 0)
    store.db.set_meta(_KEY, json.dumps(asdict(known)))


def owner_elsewhere(db: sqlite3.Connection, home: Home) -> str | None:
    """Returns the folder that a database has recorded if its id is not the one in this folder, else None."""
    here = _read(home.folder / _FILE)
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    known = None if row is None else Recorded(**json.loads(row[0]))
    return None if known is None or here in (None, known.id) else known.path


def _take_along(store: Store, *, copied: bool) -> None:
    """Relocates the paths of the project folder, if the state file is now in another folder."""
    data_dir, known = store.home, recorded(store)
    if known is None or data_dir.folder.parent != data_dir.state_file.parent:
        return
    old, new = os.path.dirname(known.path), os.path.dirname(os.path.realpath(data_dir.folder))
    if old != new:
        from gpu_scheduler.store.relocate import Relocation, relocate

        log.info("paths in %s now refer to %s: jobs files, working directories, scripts, logs", old, new)
        relocate(store, Relocation(old, new, copied=copied))


def _is_same_file(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _refusal(store: Store, original: str) -> str:
    return (
        f"{store.home.folder} is a copy of {original}, which still exists: its jobs must not be ended"
        " or run again from here\n"
        "`start --as-copy` continues here: jobs that had started and not ended are held, and no process is"
        " signalled; `start --fresh` forgets all jobs of this copy"
    )


def _place(folder: Path) -> Place:
    status = os.stat(folder)
    return Place(os.path.realpath(folder), status.st_dev, status.st_ino, _read(folder / _FILE))


def _old_place(path: str) -> Place | Unknown | None:
    try:
        if not os.path.lexists(os.path.join(path, "scheduler.db")):
            os.stat(path)  # a folder that cannot be entered hides its content
            return None if os.access(path, os.X_OK) else Unknown()
        return _place(Path(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Unknown()


def _read(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _ID_BYTES).decode("ascii", "replace").strip() or None
    except OSError:
        return None
    finally:
        os.close(fd)


def _write(path: Path, identity: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(f"{identity}\n")
            file.flush()
            os.fsync(fd)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
