"""The folder that a record knows as its own, by a random id that is also in a file of the folder, by its real
path and its inode. A record is compared with it before anything is ended by what the record says.
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
#: More than an id takes.
_ID_BYTES = 256


def recorded(store: Store) -> Recorded | None:
    """The folder that the record knows as its own; None for a new record, or one of an earlier version."""
    said = store.db.meta(_KEY)
    return None if said is None else Recorded(**json.loads(said))


def verdict(store: Store) -> Verdict:
    """Whether the record lies where it was recorded."""
    known = recorded(store)
    if known is None:
        return "same"
    here = _place(store.home.folder)
    return judge(known, here, here if here.path == known.path else _old_place(known.path))


def original(store: Store) -> str | None:
    """The folder of the record of which this one is a copy, and which is still there; None: it is no copy."""
    known = recorded(store)
    return known.path if known is not None and verdict(store) == "copied" else None


def refuse_copy(store: Store) -> None:
    """Raises SchedulerError, with the ways on, if the record is a copy of one that is still there."""
    of = original(store)
    if of is not None:
        raise SchedulerError(_refusal(store, of))


def refuse_links(store: Store) -> None:
    """Raises SchedulerError if the database of a copy is that of its original, by a hard link."""
    known = recorded(store)
    original = os.path.join(known.path, store.home.database.name) if known is not None else ""
    if _is_same_file(store.home.database, original):
        raise SchedulerError(
            f"{store.home.database} and {original} are one file with two names (a hard link): what is written"
            " here would be written there\n"
            "remove this copy and make one without links, by `cp -r`"
        )


def settle_in(store: Store, *, new: bool = False) -> None:
    """Let the record know its folder as its own, in the caller's transaction if there is one.

    new: it gets an id of its own, being a copy. For the one scheduler. Raises SchedulerError.
    """
    before = recorded(store)
    if before is not None and not new and verdict(store) == "moved":
        log.warning("this record was moved here from %s, which is gone", before.path)
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
    """Let the record know a folder by its path and the id that lies here, for one that was made from attempt
    folders, which tell no more. In the caller's transaction."""
    known = Recorded(_read(store.home.folder / _FILE) or os.urandom(16).hex(), path, 0)
    store.db.set_meta(_KEY, json.dumps(asdict(known)))


def owner_elsewhere(db: sqlite3.Connection, home: Home) -> str | None:
    """The folder that a database knows as its own, if the id that lies here is another one's; else None."""
    here = _read(home.folder / _FILE)
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    known = None if row is None else Recorded(**json.loads(row[0]))
    return None if known is None or here in (None, known.id) else known.path


def _take_along(store: Store, *, copied: bool) -> None:
    """Where the folder of the state file is another one than before, what lay in that is there too now."""
    home, known = store.home, recorded(store)
    if known is None or home.folder.parent != home.state_file.parent:
        return
    old, new = os.path.dirname(known.path), os.path.dirname(os.path.realpath(home.folder))
    if old != new:
        from gpu_scheduler.store.relocate import Relocation, relocate

        log.info("what lay in %s is looked for in %s: jobs files, working folders, scripts, logs", old, new)
        relocate(store, Relocation(old, new, copied=copied))


def _is_same_file(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _refusal(store: Store, original: str) -> str:
    return (
        f"{store.home.folder} is a copy of {original}, which is still there: jobs of that one are not to be"
        " ended or run again from here\n"
        "`start --as-copy` goes on here: what had started and not ended is held, no process is signalled;"
        " `start --fresh` forgets all jobs of this copy"
    )


def _place(folder: Path) -> Place:
    status = os.stat(folder)
    return Place(os.path.realpath(folder), status.st_dev, status.st_ino, _read(folder / _FILE))


def _old_place(path: str) -> Place | Unknown | None:
    try:
        if not os.path.lexists(os.path.join(path, "scheduler.db")):
            os.stat(path)  # one that may not be entered hides what is in it
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
